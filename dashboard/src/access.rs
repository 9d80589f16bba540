//! Who may see and who may do.
//!
//! A token stands for a role. A person gives it once, on a form, and gets a session, which a cookie
//! names; a program sends it with each request. Tokens and sessions are kept as digests: what is
//! compared is not the secret, so neither its bytes nor the time of a comparison tell of it.
//!
//! The cookie is `SameSite=Lax`, so that a link in a message opens the page; what changes anything
//! is a POST, which needs the session's own token from the form as well ([`Session::csrf`]) and is
//! refused where the browser says that another site sent it ([`crate::guard`]).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::Rng as _;
use sha2::{Digest as _, Sha256};

/// How long a session lasts.
const SESSION_LASTS: Duration = Duration::from_secs(12 * 3_600);
/// Sessions kept; beyond that the oldest goes.
const SESSIONS: usize = 1_000;
/// What a token has at least: who guesses must not succeed.
const TOKEN_CHARS: usize = 20;

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// See everything.
    Reader,
    /// Also ask something of a move.
    Operator,
}

impl Role {
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::Reader => "read-only",
            Self::Operator => "operator",
        }
    }
}

type Fingerprint = [u8; 32];

fn fingerprint(secret: &str) -> Fingerprint {
    Sha256::digest(secret.as_bytes()).into()
}

/// 256 bits from the system's generator, in hexadecimal.
fn drawn() -> String {
    let mut bytes = [0_u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A token that could be guessed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a token must have at least {TOKEN_CHARS} characters; `openssl rand -hex 32` draws one")]
pub struct WeakToken;

/// The tokens, of which only digests are kept.
#[derive(Default)]
pub struct Tokens {
    roles: HashMap<Fingerprint, Role>,
    /// Whether a token may come in the address, as one does that is drawn at the start and printed
    /// for whoever started us.
    in_address: bool,
}

impl Tokens {
    /// Adds a token for a role.
    ///
    /// # Errors
    /// When it is too short.
    pub fn add(&mut self, role: Role, token: &str) -> Result<(), WeakToken> {
        let token = token.trim();
        if token.chars().count() < TOKEN_CHARS {
            return Err(WeakToken);
        }
        self.roles.insert(fingerprint(token), role);
        Ok(())
    }

    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }

    /// One token for the operator, drawn for as long as this process lives; it may come in the
    /// address.
    pub fn drawn() -> (Self, String) {
        let token = drawn();
        let tokens = Self {
            roles: [(fingerprint(&token), Role::Operator)].into(),
            in_address: true,
        };
        (tokens, token)
    }
}

/// One person's session.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) role: Role,
    /// What every form of this session carries.
    pub(crate) csrf: String,
    begun: Instant,
    /// What the next page says once.
    notice: Option<String>,
}

/// Tokens and sessions.
pub(crate) struct Access {
    tokens: Tokens,
    sessions: Mutex<HashMap<Fingerprint, Session>>,
}

impl Access {
    pub(crate) fn new(tokens: Tokens) -> Self {
        Self {
            tokens,
            sessions: Mutex::default(),
        }
    }

    /// The role that a token stands for.
    pub(crate) fn role_of(&self, token: &str) -> Option<Role> {
        self.tokens.roles.get(&fingerprint(token.trim())).copied()
    }

    /// Whether a token may come in the address.
    pub(crate) fn takes_token_in_address(&self) -> bool {
        self.tokens.in_address
    }

    /// Begins a session; the secret that its cookie holds.
    pub(crate) fn begin(&self, role: Role) -> String {
        let secret = drawn();
        let session = Session {
            role,
            csrf: drawn(),
            begun: Instant::now(),
            notice: None,
        };
        self.with(|sessions| {
            sessions.retain(|_, session| session.begun.elapsed() < SESSION_LASTS);
            if sessions.len() >= SESSIONS {
                let oldest = sessions.iter().min_by_key(|(_, session)| session.begun);
                if let Some(oldest) = oldest.map(|(key, _)| *key) {
                    sessions.remove(&oldest);
                }
            }
            sessions.insert(fingerprint(&secret), session);
        });
        secret
    }

    /// The session that a cookie names, if it lasts.
    pub(crate) fn session(&self, secret: &str) -> Option<Session> {
        let key = fingerprint(secret);
        let found = self.with(|sessions| sessions.get(&key).cloned());
        found.filter(|session| session.begun.elapsed() < SESSION_LASTS)
    }

    pub(crate) fn end(&self, secret: &str) {
        let key = fingerprint(secret);
        self.with(|sessions| sessions.remove(&key));
    }

    /// Leaves a notice for the session's next page.
    pub(crate) fn leave(&self, secret: &str, notice: String) {
        let key = fingerprint(secret);
        self.with(|sessions| {
            if let Some(session) = sessions.get_mut(&key) {
                session.notice = Some(notice);
            }
        });
    }

    /// Takes the notice that was left.
    pub(crate) fn take(&self, secret: &str) -> Option<String> {
        let key = fingerprint(secret);
        self.with(|sessions| sessions.get_mut(&key)?.notice.take())
    }

    fn with<T>(&self, what: impl FnOnce(&mut HashMap<Fingerprint, Session>) -> T) -> T {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        what(&mut sessions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_token_is_refused_and_a_wrong_one_has_no_role() {
        let mut tokens = Tokens::default();
        assert_eq!(tokens.add(Role::Reader, "short"), Err(WeakToken));
        tokens.add(Role::Reader, &"r".repeat(20)).unwrap();
        tokens.add(Role::Operator, &"o".repeat(20)).unwrap();
        let access = Access::new(tokens);
        assert_eq!(access.role_of(&"r".repeat(20)), Some(Role::Reader));
        assert_eq!(access.role_of(&"o".repeat(20)), Some(Role::Operator));
        assert_eq!(access.role_of(&"r".repeat(19)), None);
        assert_eq!(access.role_of(""), None);
    }

    #[test]
    fn a_session_is_its_own_and_ends() {
        let access = Access::new(Tokens::default());
        let (one, other) = (access.begin(Role::Reader), access.begin(Role::Operator));
        let of = |secret: &str| access.session(secret).unwrap();
        assert_ne!(of(&one).csrf, of(&other).csrf);
        assert_eq!(of(&other).role, Role::Operator);
        access.leave(&one, "paused".to_owned());
        assert_eq!(access.take(&other), None);
        assert_eq!(access.take(&one).as_deref(), Some("paused"));
        assert_eq!(access.take(&one), None);
        access.end(&one);
        assert!(access.session(&one).is_none());
    }

    /// Nobody can fill our memory by logging in.
    #[test]
    fn sessions_are_bounded() {
        let access = Access::new(Tokens::default());
        let first = access.begin(Role::Reader);
        for _ in 0..SESSIONS {
            access.begin(Role::Reader);
        }
        assert!(access.session(&first).is_none());
        assert_eq!(access.with(|sessions| sessions.len()), SESSIONS);
    }
}
