//! What can go wrong with a bucket or an object, in words that hold no secret.
//!
//! A store's own answer may quote a credential, a signed URL or the string that was signed, so of it
//! only the status and the store's word for the error (`SlowDown`, `NoSuchBucket`) are kept; the
//! transport has thrown the rest away before anybody could print it.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use monarch_ledger::LedgerError;
use object_store::client::HttpError;

use crate::key::{BlobKey, Refusal};

/// What was being done with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doing {
    /// Asking what a bucket has under a key.
    Look,
    /// Reading an object.
    Read,
    /// Writing an object.
    Write,
    /// Having the service copy an object.
    Copy,
    /// Deleting an object.
    Delete,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doing::Look => "look at",
            Doing::Read => "read",
            Doing::Write => "write",
            Doing::Copy => "copy",
            Doing::Delete => "delete",
        })
    }
}

/// Why an operation did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// There is no such object, or no such bucket.
    NotFound,
    /// The credential does not allow it, or is none.
    Denied,
    /// Somebody else changed or made the object meanwhile.
    Conflict,
    /// The store asks for fewer requests, or is out of order for now.
    Busy,
    /// No answer, or half of one.
    Unreachable,
    /// The store cannot do this.
    Unsupported,
    /// The store will not do this, now or later.
    Rejected,
    /// The file system said so.
    Files(io::ErrorKind),
}

/// Why an operation did not succeed, and what the store called it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind it is.
    pub kind: FaultKind,
    /// The status of the store's answer.
    pub status: Option<u16>,
    /// The store's own word, for example `NoSuchBucket`.
    pub code: Option<String>,
}

impl Fault {
    /// Whether the same request may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        use io::ErrorKind as Io;
        if self.is_lost_upload() {
            return true;
        }
        match self.kind {
            FaultKind::Busy | FaultKind::Unreachable | FaultKind::Conflict => true,
            FaultKind::Files(kind) => matches!(
                kind,
                Io::Interrupted | Io::WouldBlock | Io::TimedOut | Io::StorageFull
            ),
            FaultKind::NotFound
            | FaultKind::Denied
            | FaultKind::Unsupported
            | FaultKind::Rejected => false,
        }
    }

    /// Whether the store has forgotten the parts of an object, as one does that was restarted: from
    /// the first part on it may go well.
    fn is_lost_upload(&self) -> bool {
        self.code.as_deref().is_some_and(|code| {
            matches!(
                code,
                "NoSuchUpload" | "InvalidPart" | "InvalidBlockList" | "InvalidBlobOrBlock"
            )
        })
    }

    /// Whether a file system cannot have this name beside the others.
    pub(crate) fn is_name(&self) -> bool {
        use io::ErrorKind as Io;
        matches!(
            self.kind,
            FaultKind::Files(
                Io::NotADirectory | Io::IsADirectory | Io::InvalidFilename | Io::InvalidInput
            )
        )
    }

    pub(crate) fn of(error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let answer = Answer::of(error);
        let kind = match error {
            E::NotFound { .. } => FaultKind::NotFound,
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => FaultKind::Denied,
            E::Precondition { .. } | E::AlreadyExists { .. } | E::NotModified { .. } => {
                FaultKind::Conflict
            }
            E::NotSupported { .. } | E::NotImplemented { .. } => FaultKind::Unsupported,
            E::Generic { .. } => answer.kind(),
            _ => FaultKind::Rejected,
        };
        Self {
            kind,
            status: answer.status,
            code: answer.code,
        }
    }

    pub(crate) fn io(error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => FaultKind::NotFound,
            io::ErrorKind::PermissionDenied => FaultKind::Denied,
            kind => FaultKind::Files(kind),
        };
        Self {
            kind,
            status: None,
            code: None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FaultKind::NotFound => f.write_str("not found")?,
            FaultKind::Denied => f.write_str("the credential does not allow it")?,
            FaultKind::Conflict => f.write_str("somebody else changed it meanwhile")?,
            FaultKind::Busy => f.write_str("the store is busy")?,
            FaultKind::Unreachable => f.write_str("no whole answer")?,
            FaultKind::Unsupported => f.write_str("the store cannot do this")?,
            FaultKind::Rejected => f.write_str("the store refuses")?,
            FaultKind::Files(kind) => write!(f, "{kind}")?,
        }
        match (self.status, &self.code) {
            (Some(status), Some(code)) => write!(f, " ({status} {code})"),
            (Some(status), None) => write!(f, " ({status})"),
            (None, _) => Ok(()),
        }
    }
}

/// What the chain of an error tells of the store's answer.
#[derive(Default)]
struct Answer {
    status: Option<u16>,
    code: Option<String>,
    transport: bool,
    io: Option<io::ErrorKind>,
}

impl Answer {
    /// The library keeps its error with the status private, but its text begins with it; the body
    /// behind it is the one word that our transport left of it.
    fn of(error: &object_store::Error) -> Self {
        const STATUS: &str = "status code: ";
        let mut answer = Self::default();
        let mut next = StdError::source(error);
        while let Some(error) = next {
            answer.transport |= error.is::<HttpError>();
            if let Some(error) = error.downcast_ref::<io::Error>() {
                answer.io = Some(error.kind());
            }
            let text = error.to_string();
            if answer.status.is_none()
                && let Some((_, rest)) = text.rsplit_once(STATUS)
            {
                answer.status = rest.get(..3).and_then(|status| status.parse().ok());
                let code = rest.rsplit(": ").next().unwrap_or_default().trim();
                let is_word = !code.is_empty() && code.bytes().all(|b| b.is_ascii_alphanumeric());
                answer.code = is_word.then(|| code.to_owned());
            }
            next = error.source();
        }
        answer
    }

    fn kind(&self) -> FaultKind {
        match (self.status, self.io) {
            (Some(408 | 429 | 500..=599), _) => FaultKind::Busy,
            (Some(_), _) => FaultKind::Rejected,
            (None, _) if self.transport => FaultKind::Unreachable,
            (None, Some(kind)) => Fault::io(&kind.into()).kind,
            (None, None) => FaultKind::Unreachable,
        }
    }
}

/// Why objects were not dealt with.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// A place of the fleet cannot be opened.
    #[error("open {place}: {why}")]
    Open {
        /// The place, without secrets.
        place: String,
        /// Why not.
        why: String,
    },
    /// A bucket cannot hold a key, or this program cannot name it there.
    #[error("{place} cannot hold the key {key}: {refusal}")]
    Refused {
        /// The bucket.
        place: String,
        /// The key.
        key: BlobKey,
        /// Why not.
        refusal: Refusal,
    },
    /// An operation on an object did not succeed.
    #[error("{doing} {key} in {place}: {fault}")]
    Object {
        /// What was being done.
        doing: Doing,
        /// The bucket.
        place: String,
        /// The key.
        key: BlobKey,
        /// Why it did not succeed.
        fault: Fault,
    },
    /// The object changed each time while it was being copied.
    #[error("{key} in {place} changed during each of {attempts} copies")]
    Changing {
        /// The bucket.
        place: String,
        /// The key.
        key: BlobKey,
        /// How often it was copied.
        attempts: u32,
    },
    /// The copy on the sink is not what was written.
    #[error("{key} in {place} has {found} bytes after {written} were written")]
    Torn {
        /// The bucket.
        place: String,
        /// The key.
        key: BlobKey,
        /// Its size as the bucket says.
        found: u64,
        /// What was written.
        written: u64,
    },
    /// The work was called off.
    #[error("called off")]
    Cancelled,
    /// A task of ours ended by itself.
    #[error("a copy ended without a result")]
    Lost,
    /// The ledger did not do its part.
    #[error("the ledger of objects")]
    Ledger(#[from] LedgerError),
    /// The question who else names a key could not be answered.
    #[error("ask who else names a key")]
    References(#[source] monarch_postgres::ServerError),
}

impl BlobError {
    /// Whether the same request may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            BlobError::Object { fault, .. } => fault.is_transient(),
            BlobError::Torn { .. } | BlobError::Changing { .. } | BlobError::Lost => true,
            BlobError::Ledger(error) => error.is_transient(),
            BlobError::References(error) => error.is_transient(),
            BlobError::Open { .. } | BlobError::Refused { .. } | BlobError::Cancelled => false,
        }
    }

    /// The fault of an object's operation.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            BlobError::Object { fault, .. } => Some(fault),
            _ => None,
        }
    }
}
