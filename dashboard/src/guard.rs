//! What holds for every request, whoever makes it: how it may have come, and what a browser may do
//! with the answer.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Form, RequestPartsExt as _};

use crate::access::{Role, Session};
use crate::problem::Problem;
use crate::site::{Front, Site};

/// What a browser may do with our pages: load our own script, style and events, send our own forms,
/// and nothing else. No script and no style stands in a page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 8] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // With less, browsers would send our own forms without an origin.
    (header::REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
    (header::X_XSS_PROTECTION, "0"),
];

/// Lets a request in that may have come this way, and dresses the answer.
pub(crate) async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let mut response = match entry(&site.front, request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // What an operator saw is not for whoever comes to the machine later.
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    if site.front.is_secure() {
        let always = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, always);
    }
    response
}

fn entry(front: &Front, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let host = text(headers, &header::HOST);
    if !host.is_some_and(|host| is_ours(front, host)) {
        return Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "this page is not known under that name",
            "use the address that `monarch dashboard` prints; other names are allowed by --host",
        ));
    }
    if let Some(by) = &front.proxy_header
        && headers.get(by.as_str()).map(HeaderValue::as_bytes) != Some(b"https")
    {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "the request did not come by the proxy over TLS",
            "use the proxy's address",
        ));
    }
    let is_safe = matches!(*method, Method::GET | Method::HEAD);
    if !is_safe && is_from_elsewhere(headers, host) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "the request came from another site",
            "open the page itself and ask there",
        ));
    }
    Ok(())
}

fn is_ours(front: &Front, host: &str) -> bool {
    let name = without_port(host);
    front
        .hosts
        .iter()
        .any(|ours| ours.eq_ignore_ascii_case(name))
}

/// `example.org:8787` as `example.org`, `[::1]:8787` as `[::1]`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether the browser says that another site made the request. A program that is none says nothing.
fn is_from_elsewhere(headers: &HeaderMap, host: Option<&str>) -> bool {
    let site = text(headers, &HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| site != "same-origin") {
        return true;
    }
    let origin = headers.get(header::ORIGIN);
    origin.is_some_and(|origin| {
        let origin = origin.to_str().ok();
        let named = origin.and_then(|origin| origin.split_once("://"));
        named.map(|(_, authority)| authority) != host
    })
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) enum Identity {
    /// A person with a session; the secret names it.
    Person { secret: String, session: Session },
    /// A program that sends its token.
    Program(Role),
}

impl Identity {
    pub(crate) fn role(&self) -> Role {
        match self {
            Self::Person { session, .. } => session.role,
            Self::Program(role) => *role,
        }
    }

    pub(crate) fn is_operator(&self) -> bool {
        self.role() >= Role::Operator
    }

    /// What our forms carry for this session.
    pub(crate) fn csrf(&self) -> &str {
        match self {
            Self::Person { session, .. } => &session.csrf,
            Self::Program(_) => "",
        }
    }

    /// The same as it is now: a session may have ended since.
    pub(crate) fn is_still(&self, site: &Site) -> bool {
        match self {
            Self::Person { secret, .. } => site.access.session(secret).is_some(),
            Self::Program(_) => true,
        }
    }

    fn of(headers: &HeaderMap, site: &Site) -> Option<Self> {
        let bearer = text(headers, &header::AUTHORIZATION)
            .and_then(|value| value.strip_prefix("Bearer "))
            .and_then(|token| site.access.role_of(token));
        if let Some(role) = bearer {
            return Some(Self::Program(role));
        }
        let secret = cookie(headers, cookie_name(&site.front))?;
        let session = site.access.session(secret)?;
        Some(Self::Person {
            secret: secret.to_owned(),
            session,
        })
    }
}

/// What the session's cookie is called; by TLS under a name that browsers hold to its terms.
pub(crate) fn cookie_name(front: &Front) -> &'static str {
    if front.is_secure() {
        "__Host-monarch"
    } else {
        "monarch"
    }
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let sent = headers.get_all(header::COOKIE).iter();
    let mut pairs = sent
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(found, value)| (found == name).then_some(value))
}

impl FromRequestParts<Arc<Site>> for Identity {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, Response> {
        if let Some(identity) = Self::of(&parts.headers, site) {
            return Ok(identity);
        }
        let wants_page = text(&parts.headers, &header::ACCEPT)
            .is_some_and(|accepted| accepted.contains("text/html"));
        if parts.method == Method::GET && wants_page {
            let next = encoded(parts.uri.path(), b"/");
            return Err(Redirect::to(&format!("/login?next={next}")).into_response());
        }
        Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "you are not logged in",
            "log in at /login, or send `Authorization: Bearer TOKEN`",
        )
        .into_response())
    }
}

/// A text within an address; of what is special there, only `kept` stays as it is.
pub(crate) fn encoded(text: &str, kept: &[u8]) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || kept.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

/// A form that an operator sent from a page of ours. There is no other way to what a form holds, so
/// none is acted upon unchecked.
pub(crate) struct Posted {
    pub(crate) who: Identity,
    fields: Vec<(String, String)>,
}

impl Posted {
    /// A field as it was sent; empty if it was not.
    pub(crate) fn whole(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(field, _)| field == name);
        found.map_or("", |(_, value)| value)
    }

    /// The same without the blanks around it.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.whole(name).trim()
    }

    /// Whether a box was ticked.
    pub(crate) fn is_ticked(&self, name: &str) -> bool {
        self.field(name) == "yes"
    }
}

impl FromRequest<Arc<Site>> for Posted {
    type Rejection = Response;

    async fn from_request(request: Request, site: &Arc<Site>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let who = parts.extract_with_state::<Identity, _>(site).await?;
        if !who.is_operator() {
            return Err(Problem::read_only().into_response());
        }
        let request = Request::from_parts(parts, body);
        let form = Form::<Vec<(String, String)>>::from_request(request, site).await;
        let Form(fields) = form.map_err(IntoResponse::into_response)?;
        let posted = Self { who, fields };
        match &posted.who {
            Identity::Person { session, .. } if posted.field("csrf") != session.csrf => {
                Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "the form was not made for your session",
                    "go back, reload the page and try again",
                )
                .into_response())
            }
            _ => Ok(posted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let named = pairs.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).unwrap();
            (HeaderName::from_static(name), value)
        });
        named.collect()
    }

    #[test]
    fn a_name_that_is_not_ours_is_refused_whatever_its_port() {
        let front = Front {
            hosts: vec!["127.0.0.1".to_owned(), "[::1]".to_owned()],
            ..Front::default()
        };
        for (host, is_let_in) in [
            ("127.0.0.1:8787", true),
            ("127.0.0.1", true),
            ("[::1]:8787", true),
            ("evil.example:8787", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            let entered = entry(&front, &Method::GET, &headers(&[("host", host)]));
            assert_eq!(entered.is_ok(), is_let_in, "{host}");
        }
        assert!(entry(&front, &Method::GET, &HeaderMap::new()).is_err());
    }

    #[test]
    fn what_another_site_sends_changes_nothing() {
        let host = Some("page.example");
        for (sent, is_foreign) in [
            (&[("origin", "https://page.example")][..], false),
            (&[("origin", "https://evil.example")], true),
            (&[("origin", "null")], true),
            (&[("sec-fetch-site", "same-site")], true),
            (&[("sec-fetch-site", "cross-site")], true),
            (&[("sec-fetch-site", "same-origin")], false),
            (&[], false),
        ] {
            assert_eq!(
                is_from_elsewhere(&headers(sent), host),
                is_foreign,
                "{sent:?}"
            );
        }
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let sent = headers(&[("cookie", "a=1; monarch=secret; b=2")]);
        assert_eq!(cookie(&sent, "monarch"), Some("secret"));
        assert_eq!(cookie(&sent, "mon"), None);
    }
}
