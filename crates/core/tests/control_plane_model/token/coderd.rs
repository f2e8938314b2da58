//! What effects do to coderd, to its database and to the Secret.

use super::{Material, Method, Row, Successor, World, operator::SyncExchange};

/// A token that was created or found good.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    pub id: u8,
    pub born: u8,
    pub is_only_one: bool,
}

impl World {
    /// Creates a token in coderd. None: the call is refused.
    pub fn mint(&mut self, sync: &SyncExchange, renews: bool, is_refused: bool) -> Option<Created> {
        match Method::of(sync.observed.method) {
            Method::Postgres => Some(self.mint_in_database(sync, is_refused)),
            Method::FirstUser => self.mint_in_coderd(sync, renews),
            Method::Supplied => None,
        }
    }

    fn mint_in_database(&mut self, sync: &SyncExchange, is_refused: bool) -> Created {
        self.has_rights = true;
        let method = Method::Postgres;
        let present = self.row(sync.secret).filter(|row| row.method == method);
        self.remove_but(method, present.map(|row| row.id), Successor::Leftover);
        match present {
            Some(row) if !is_refused && row.born >= self.now => {
                // Only one token is left, and it takes the plain name. One that was given up before is in use again.
                self.abandoned.retain(|id| *id != row.id);
                self.rows.iter_mut().filter(|other| other.id == row.id).for_each(|row| row.is_next = false);
                Created { id: row.id, born: row.born, is_only_one: true }
            }
            Some(row) => self.insert(sync, method, !row.is_next, false),
            None => self.insert(sync, method, false, true),
        }
    }

    fn mint_in_coderd(&mut self, sync: &SyncExchange, renews: bool) -> Option<Created> {
        let method = Method::FirstUser;
        let present = self.row(sync.secret).filter(|row| row.method == method);
        if renews && present.is_none() {
            return None;
        }
        let is_next = present.is_some_and(|row| !row.is_next);
        let leftovers = self.rows.iter().filter(|row| row.method == method && row.is_next == is_next);
        for id in leftovers.map(|row| row.id).collect::<Vec<_>>() {
            self.delete(id, Some(Successor::Leftover));
        }
        Some(self.insert(sync, method, is_next, false))
    }

    fn insert(&mut self, sync: &SyncExchange, method: Method, is_next: bool, is_only_one: bool) -> Created {
        // The least number that nothing remembers, so that the number of states stays finite.
        let is_free = |id: &u8| {
            let is_read = [self.secret, sync.secret].contains(&Some(Material::Token(*id)));
            !is_read && !self.damaged_by_others.contains(id) && self.rows.iter().all(|row| row.id != *id)
        };
        let (id, born) = ((0..u8::MAX).find(is_free).unwrap_or(u8::MAX), self.now);
        let is_accepted = method != Method::Postgres || !self.wrong_database;
        self.rows.push(Row { id, method, is_next, born, is_accepted });
        self.rows.sort_unstable_by_key(|row| row.id);
        Created { id, born, is_only_one }
    }

    /// Deletes the tokens of a method, except one.
    pub fn remove_but(&mut self, method: Method, kept: Option<u8>, successor: Successor) {
        let others = self.rows.iter().filter(|row| row.method == method && Some(row.id) != kept);
        for id in others.map(|row| row.id).collect::<Vec<_>>() {
            self.delete(id, Some(successor));
        }
    }

    /// Deletes the tokens of a method because no token is wanted any more.
    pub fn revoke(&mut self, method: Method) {
        let of_method = self.rows.iter().filter(|row| row.method == method).map(|row| row.id);
        for id in of_method.collect::<Vec<_>>() {
            self.delete(id, None);
        }
    }

    /// Deletes the tokens of the first user with the token in the Secret, else after logging in.
    pub fn revoke_in_coderd(&mut self, user_id: Option<&str>) {
        let me = self.row(self.secret).filter(|row| row.is_accepted).map(|row| row.method);
        let of_me = me.filter(|me| user_id.is_none_or(|user| user == me.user()));
        self.revoke(of_me.unwrap_or(Method::FirstUser));
    }

    /// Writes the Secret onto the version that was read.
    pub fn store(&mut self, sync: &SyncExchange, id: u8) -> bool {
        let is_unchanged = self.secret == sync.secret;
        if is_unchanged {
            self.secret = Some(Material::Token(id));
        }
        is_unchanged
    }
}
