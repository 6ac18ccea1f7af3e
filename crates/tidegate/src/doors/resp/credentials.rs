//! The passwords of users, which clients must show to come in.

use std::hint::black_box;

/// The user of a client that gives a password alone.
pub(super) const DEFAULT_USER: &[u8] = b"default";

/// The users and their passwords. Every user may do everything.
#[derive(Default)]
pub(super) struct Credentials {
    users: Vec<User>,
}

struct User {
    name: Vec<u8>,
    password: String,
}

impl Credentials {
    pub(super) fn new(users: impl IntoIterator<Item = (Vec<u8>, String)>) -> Self {
        let users = users.into_iter().map(|(name, password)| User { name, password });
        Self { users: users.collect() }
    }

    /// Whether clients must authenticate.
    pub(super) fn are_required(&self) -> bool {
        !self.users.is_empty()
    }

    /// Whether the user that a password alone is for has one.
    pub(super) fn has_default(&self) -> bool {
        self.users.iter().any(|user| user.name == DEFAULT_USER)
    }

    /// Whether this is the password of the user. Where no passwords are set, the default user has
    /// any.
    pub(super) fn permit(&self, user: &[u8], password: &[u8]) -> bool {
        if !self.are_required() {
            return user == DEFAULT_USER;
        }
        // Every user is compared, so that the time taken tells nothing of users either.
        self.users.iter().fold(false, |found, known| {
            found | (is_same(user, &known.name) & is_same(password, known.password.as_bytes()))
        })
    }
}

/// Compares in a time that depends on what was given alone.
fn is_same(given: &[u8], secret: &[u8]) -> bool {
    let mut difference = given.len() ^ secret.len();
    for (at, byte) in given.iter().enumerate() {
        let other = secret.get(at).copied().unwrap_or_default();
        difference |= usize::from(black_box(byte ^ other));
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_for_its_user() {
        let credentials = Credentials::new([
            (b"default".to_vec(), "one".to_owned()),
            (b"app".to_vec(), "two".to_owned()),
        ]);
        assert!(credentials.are_required() && credentials.has_default());
        for (user, password, permitted) in [
            ("default", "one", true),
            ("app", "two", true),
            ("default", "two", false),
            ("app", "one", false),
            ("other", "one", false),
            ("default", "", false),
            ("default", "on", false),
            ("default", "one ", false),
            ("default", "One", false),
            ("", "", false),
        ] {
            let said = credentials.permit(user.as_bytes(), password.as_bytes());
            assert_eq!(said, permitted, "{user} {password:?}");
        }
    }

    #[test]
    fn without_passwords_the_default_user_has_any() {
        let none = Credentials::default();
        assert!(!none.are_required() && !none.has_default());
        assert!(none.permit(b"default", b"anything") && !none.permit(b"app", b"anything"));
    }
}
