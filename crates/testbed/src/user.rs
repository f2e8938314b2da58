//! The user that runs a program which refuses to run as root.

use std::io;
use std::os::unix::fs::chown;
use std::path::Path;

const PASSWD: &str = "/etc/passwd";
/// In order of preference: the user made for Postgres, then the one that owns nothing.
const NAMES: [&str; 2] = ["postgres", "nobody"];
const NOBODY: User = User { uid: 65_534, gid: 65_534 };

/// A user by its numeric ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// A user other than root. `None` if this process is not root and can keep its user.
    pub(crate) fn unless_ordinary() -> Option<Self> {
        rustix::process::geteuid().is_root().then(|| {
            let accounts = std::fs::read_to_string(PASSWD).unwrap_or_default();
            NAMES.iter().find_map(|name| in_passwd(&accounts, name)).unwrap_or(NOBODY)
        })
    }

    /// Makes this user the owner of a file.
    pub(crate) fn take(self, path: &Path) -> io::Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
    }
}

fn in_passwd(accounts: &str, name: &str) -> Option<User> {
    let fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    fields.into_iter().find_map(|fields| match fields.as_slice() {
        [found, _, uid, gid, ..] if *found == name => {
            Some(User { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let accounts = "postgres-old:x:7:7::/:/bin/sh\npostgres:x:101:104:A B:/var/lib:/bin/sh\nbroken\n";
        assert_eq!(in_passwd(accounts, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(in_passwd(accounts, "nobody"), None);
    }
}
