//! The HTTP below every bucket: TLS as in the rest of Monarch, one pause for all when a store asks
//! for fewer requests, and answers that quote no secret.
//!
//! The library retries a request by itself, each for its own. A store that answers 503 or 429 means
//! all of them, so the pause is kept here, where every request to a bucket passes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// How long an answer may say nothing. There is no limit on a whole request: objects are large.
const SILENCE: Duration = Duration::from_secs(60);

/// The first pause after a store asked for fewer requests; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause that comes of doubling.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause that is made because the store names one.
const LONGEST_WANTED: Duration = Duration::from_secs(60);

/// How much of an error's text is looked at for the store's word.
const LOOKED_AT: usize = 16 << 10;

/// Whether a store has asked for fewer requests, and until when it gets none.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    state: Mutex<Paused>,
    slow_downs: AtomicU64,
}

#[derive(Debug, Default)]
struct Paused {
    until: Option<Instant>,
    last: Duration,
}

impl Pressure {
    /// How often the store has asked for fewer requests.
    pub(crate) fn slow_downs(&self) -> u64 {
        self.slow_downs.load(Ordering::Relaxed)
    }

    /// Waits for the end of a pause, and a random bit longer, so that not everybody comes at once.
    async fn wait(&self) {
        loop {
            match self.until(Instant::now()) {
                Some(until) => {
                    let spread = rand::random_range(0..100);
                    tokio::time::sleep_until(until + Duration::from_millis(spread)).await;
                }
                None => return,
            }
        }
    }

    /// Until when the present pause lasts, if there is one.
    fn until(&self, now: Instant) -> Option<Instant> {
        self.lock().until.filter(|until| *until > now)
    }

    /// Begins a pause. Answers to requests that were under way when it began do not make it longer.
    fn slow_down(&self, wanted: Option<Duration>, now: Instant) {
        self.slow_downs.fetch_add(1, Ordering::Relaxed);
        let mut paused = self.lock();
        if paused.until.is_some_and(|until| until > now) && wanted.is_none() {
            return;
        }
        let doubled = (paused.last * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        let pause = wanted.map_or(doubled, |wanted| wanted.min(LONGEST_WANTED));
        paused.last = doubled;
        paused.until = paused.until.max(Some(now + pause));
    }

    /// The store answers again: the next pause is a short one.
    fn relax(&self, now: Instant) {
        let mut paused = self.lock();
        if paused.until.is_none_or(|until| until <= now) {
            *paused = Paused::default();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Paused> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the HTTP clients of one bucket.
#[derive(Debug)]
pub(crate) struct Connector {
    tls: ClientConfig,
    pressure: Arc<Pressure>,
}

impl Connector {
    /// Trusts the system's authorities and those in the file `authorities`.
    pub(crate) fn new(
        authorities: Option<&str>,
        pressure: &Arc<Pressure>,
    ) -> Result<Self, &'static str> {
        let mut roots = system_roots().clone();
        if let Some(file) = authorities {
            let found = rustls_native_certs::load_certs_from_paths(Some(file.as_ref()), None);
            if found.certs.is_empty() {
                return Err("AWS_CA_BUNDLE names no readable certificates");
            }
            roots.add_parsable_certificates(found.certs);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| "TLS has no protocol versions")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls,
            pressure: Arc::clone(pressure),
        })
    }
}

impl Connector {
    fn client(&self, https_only: bool) -> reqwest::Result<reqwest::Client> {
        reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .https_only(https_only)
            // A connection for each request under way: one would carry them all no faster.
            .http1_only()
            // The buckets' answers are what they are; a wrong region is said by name.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .build()
    }

    /// The region that a bucket of AWS is in, as AWS says to anybody who asks. Cells are often far
    /// apart, and one variable cannot name the regions of two buckets.
    pub(crate) async fn region_of(&self, bucket: &str) -> Option<String> {
        let url = format!("https://s3.amazonaws.com/{bucket}");
        let client = self.client(true).ok()?;
        let response = client.head(url).send().await.ok()?;
        let region = response.headers().get("x-amz-bucket-region")?.to_str();
        region.ok().map(ToOwned::to_owned)
    }
}

/// Read once: there are a hundred files of them.
fn system_roots() -> &'static RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    })
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let client = self
            .client(allow_http.as_deref() != Some("true"))
            .map_err(|error| object_store::Error::Generic {
                store: "HTTP",
                source: Box::new(error.without_url()),
            })?;
        Ok(HttpClient::new(Service {
            client,
            pressure: Arc::clone(&self.pressure),
        }))
    }
}

#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    pressure: Arc<Pressure>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.pressure.wait().await;
        let response = HttpService::call(&self.client, request).await?;
        let status = response.status().as_u16();
        match status {
            429 | 503 => {
                let wanted = retry_after(&response);
                self.pressure.slow_down(wanted, Instant::now());
            }
            _ => self.pressure.relax(Instant::now()),
        }
        if status < 400 {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let text = body.bytes().await.unwrap_or_default();
        let code = code(&text[..text.len().min(LOOKED_AT)]);
        Ok(HttpResponse::from_parts(parts, code.into()))
    }
}

fn retry_after(response: &HttpResponse) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

/// The store's word for an error: what stands in `<Code>` of the XML that all of them answer with.
fn code(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let word = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map_or("", |(word, _)| word);
    if word.len() <= 64 && word.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        word.to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 10: of an answer that quotes a credential, one word is left.
    #[test]
    fn an_error_is_one_word() {
        let body = b"<?xml?><Error><Code>SignatureDoesNotMatch</Code><Message>m</Message>\
                     <AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        assert_eq!(code(body), "SignatureDoesNotMatch");
        assert_eq!(code(b"<Code>secret=1 &amp;</Code>"), "");
        assert_eq!(code(b"AccountKey=secret"), "");
    }

    /// Guards the store: a pause grows while it goes on asking, and is for everybody.
    #[test]
    fn pauses_double_until_the_store_answers() {
        let pressure = Pressure::default();
        let begun = Instant::now();
        pressure.slow_down(None, begun);
        // The answer to a request that was under way already.
        pressure.slow_down(None, begun);
        let first = begun + FIRST_PAUSE;
        assert_eq!(pressure.until(begun), Some(first));
        assert_eq!(pressure.until(first), None);
        // An answer that comes during a pause does not end it.
        pressure.relax(begun);
        assert_eq!(pressure.until(begun), Some(first));
        pressure.slow_down(None, first);
        assert_eq!(pressure.until(first), Some(first + FIRST_PAUSE * 2));
        pressure.relax(first + FIRST_PAUSE * 2);
        let later = first + FIRST_PAUSE * 3;
        pressure.slow_down(None, later);
        assert_eq!(pressure.until(later), Some(later + FIRST_PAUSE));
        pressure.slow_down(Some(Duration::from_secs(7)), later);
        assert_eq!(pressure.until(later), Some(later + Duration::from_secs(7)));
        assert_eq!(pressure.slow_downs(), 5);
    }
}
