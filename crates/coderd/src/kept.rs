//! A cache whose entries are removed when nobody has used them for a while. It bounds what servers of deleted objects
//! cost.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long an entry stays that nobody uses.
pub(crate) const UNUSED: Duration = Duration::from_mins(10);

/// Shared values by key.
pub(crate) struct Kept<K, V> {
    all: HashMap<K, (Arc<V>, Instant)>,
    swept: Option<Instant>,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self { all: HashMap::new(), swept: None }
    }
}

impl<K: Eq + Hash, V> Kept<K, V> {
    /// Returns the value of a key, and creates it first if there is none.
    pub(crate) fn get<E>(
        &mut self,
        key: K,
        now: Instant,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        self.sweep(now);
        if let Some((kept, used)) = self.all.get_mut(&key) {
            *used = now;
            return Ok(kept.clone());
        }
        let made = Arc::new(make()?);
        self.all.insert(key, (made.clone(), now));
        Ok(made)
    }

    /// Number of cached values.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Removes entries that nobody holds and that nobody asked for within [`UNUSED`]. Runs at most every tenth of
    /// that time.
    fn sweep(&mut self, now: Instant) {
        let due = self.swept.is_none_or(|last| now.saturating_duration_since(last) >= UNUSED / 10);
        if !due {
            return;
        }
        self.swept = Some(now);
        for (kept, used) in self.all.values_mut() {
            if Arc::strong_count(kept) > 1 {
                *used = now;
            }
        }
        self.all.retain(|_, (_, used)| now.saturating_duration_since(*used) < UNUSED);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn unused_things_are_forgotten_and_held_ones_are_not() {
        let (mut kept, start) = (Kept::default(), Instant::now());
        let make = |value: u32| move || Ok::<_, Infallible>(value);
        let held = kept.get("held", start, make(1)).unwrap();
        drop(kept.get("left", start, make(2)).unwrap());

        let later = start + UNUSED * 2;
        kept.get("new", later, make(3)).unwrap();
        assert_eq!(kept.len(), 2, "the one that nobody holds is gone");
        assert!(Arc::ptr_eq(&held, &kept.get("held", later, make(9)).unwrap()));

        drop(held);
        kept.get("other", later + UNUSED * 2, make(4)).unwrap();
        assert_eq!(kept.len(), 1);
    }

    #[test]
    fn a_thing_in_use_is_the_same_for_everybody() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        let one = kept.get(1, now, || Ok::<_, Infallible>(String::new())).unwrap();
        let other = kept.get(1, now + UNUSED / 2, || Ok::<_, Infallible>(String::new())).unwrap();
        assert!(Arc::ptr_eq(&one, &other));
    }
}
