//! The addresses of the page.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, middleware};
use maud::Markup;
use monarch_ledger::Move;
use monarch_model::MoveId;
use tokio::time::timeout;

use crate::access::Role;
use crate::actions::{Action, offer};
use crate::follower::{Seen, look_once};
use crate::guard::{Identity, Posted, cookie_name, guard};
use crate::live::{self, Render, Rendered};
use crate::page::{self, Frame, asset};
use crate::problem::Problem;
use crate::reading::Reading;
use crate::site::Site;
use crate::steering;
use crate::workflows::Started;

/// The newest moves that the list shows.
const MOVES: u32 = 50;
/// A ledger that takes longer is away.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The largest form.
const FORM_BYTES: usize = 64 * 1024;
/// A page changes no more often than its stores can be drawn in this part of the time.
const PAUSE_PER_STORE: Duration = Duration::from_millis(25);

/// Everything that is served.
pub(crate) fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(list))
        .route("/live", get(list_live))
        .route("/login", get(login_page).post(login))
        .route("/logout", post(logout))
        .route("/start", get(start_page).post(start))
        .route("/start/plan", post(plan))
        .route("/moves/{id}", get(move_page))
        .route("/moves/{id}/live", get(move_live))
        .route("/moves/{id}/stores/{place}", get(store_page))
        .route("/moves/{id}/ask/{action}", get(confirm).post(ask))
        .route("/assets/{name}", get(assets))
        .fallback(async || Problem::not_found())
        .layer(DefaultBodyLimit::max(FORM_BYTES))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), guard))
        .with_state(site)
}

type Page = Result<Markup, Problem>;

async fn assets(Path(name): Path<String>) -> Response {
    let Some(found) = asset::named(&name) else {
        return Problem::not_found().into_response();
    };
    let for_ever = HeaderValue::from_static("public, max-age=31536000, immutable");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(found.kind)),
        (header::CACHE_CONTROL, for_ever),
    ];
    (headers, found.text).into_response()
}

// --- the list of moves

async fn list(State(site): State<Arc<Site>>, who: Identity) -> Markup {
    let frame = Frame::new(&site, &who).live("/live");
    let seen = site.news.now();
    page::list::page(&frame, &moves(&site).await, &seen)
}

async fn list_live(State(site): State<Arc<Site>>, who: Identity) -> impl IntoResponse {
    let of = Arc::clone(&site);
    let render: Render = Box::new(move |seen| {
        let site = Arc::clone(&of);
        Box::pin(async move {
            Some(Rendered {
                parts: page::list::parts(&moves(&site).await, &seen),
                pause: Duration::from_secs(1),
                is_last: false,
            })
        })
    });
    live::events(site, who, render)
}

/// The newest moves, or why they cannot be told.
async fn moves(site: &Site) -> Result<Vec<Move>, String> {
    match timeout(ANSWER_WITHIN, site.ledger.moves(MOVES)).await {
        Ok(Ok(moves)) => Ok(moves),
        Ok(Err(error)) => Err(monarch_model::chain(&error)),
        Err(_) => Err("the ledger does not answer".to_owned()),
    }
}

// --- one move

async fn move_page(State(site): State<Arc<Site>>, who: Identity, Path(id): Path<String>) -> Page {
    let (reading, seen) = reading(&site, &id).await?;
    let live = format!("/moves/{}/live", reading.of.id);
    let frame = Frame::new(&site, &who).live(&live);
    Ok(page::one::page(&frame, &site, &reading, &seen))
}

async fn store_page(
    State(site): State<Arc<Site>>,
    who: Identity,
    Path((id, place)): Path<(String, usize)>,
) -> Page {
    let (reading, seen) = reading(&site, &id).await?;
    if place >= reading.stores.len() {
        return Err(Problem::not_found());
    }
    let live = format!("/moves/{}/live", reading.of.id);
    let frame = Frame::new(&site, &who).live(&live);
    Ok(page::store::page(&frame, &site, &reading, place, &seen))
}

async fn move_live(
    State(site): State<Arc<Site>>,
    who: Identity,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id: MoveId = id.parse().map_err(|_| Problem::not_found())?;
    let of = Arc::clone(&site);
    let is_operator = who.is_operator();
    let render: Render = Box::new(move |seen| {
        let site = Arc::clone(&of);
        Box::pin(async move { parts_of(&site, id, is_operator, &seen).await })
    });
    Ok(live::events(site, who, render).into_response())
}

async fn parts_of(site: &Site, id: MoveId, is_operator: bool, seen: &Seen) -> Option<Rendered> {
    let followed = seen.reading.clone().filter(|reading| reading.of.id == id);
    let reading = match followed {
        Some(reading) => reading,
        // While the ledger is away, its banner is all that is new.
        None if seen.away.is_some() => {
            return Some(Rendered {
                parts: vec![page::banner_part(seen)],
                pause: Duration::from_secs(1),
                is_last: false,
            });
        }
        None => Arc::new(look_once(site, id).await.ok().flatten()?),
    };
    let stores = u32::try_from(reading.stores.len()).unwrap_or(u32::MAX);
    Some(Rendered {
        parts: page::one::parts(site, &reading, is_operator, seen),
        pause: Duration::from_millis(900).max(PAUSE_PER_STORE * stores),
        is_last: !reading.of.phase.is_live() && seen.away.is_none(),
    })
}

/// The move of an address, as it was seen last or, if it is not followed, as it is now.
async fn reading(site: &Site, id: &str) -> Result<(Arc<Reading>, Seen), Problem> {
    let id: MoveId = id.parse().map_err(|_| Problem::not_found())?;
    let seen = site.news.now();
    if let Some(reading) = seen.reading.clone().filter(|reading| reading.of.id == id) {
        return Ok((reading, seen));
    }
    let looked = timeout(ANSWER_WITHIN, look_once(site, id)).await;
    let looked = looked.map_err(|_| {
        let to_do = "see whether it is up, then reload";
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the ledger does not answer",
            to_do,
        )
    })?;
    let reading = looked?.ok_or_else(Problem::not_found)?;
    Ok((Arc::new(reading), seen))
}

// --- what is asked of it

async fn confirm(
    State(site): State<Arc<Site>>,
    who: Identity,
    Path((id, action)): Path<(String, String)>,
) -> Page {
    if !who.is_operator() {
        return Err(Problem::read_only());
    }
    let action = Action::named(&action).ok_or_else(Problem::not_found)?;
    let (reading, _) = reading(&site, &id).await?;
    let frame = Frame::new(&site, &who);
    let reasons = offer(&reading, action).reasons;
    Ok(page::confirm::page(&frame, &reading, action, &reasons, &[]))
}

async fn ask(
    State(site): State<Arc<Site>>,
    Path((id, action)): Path<(String, String)>,
    posted: Posted,
) -> Result<Response, Problem> {
    let action = Action::named(&action).ok_or_else(Problem::not_found)?;
    let (reading, _) = reading(&site, &id).await?;
    let request = match steering::request(action, &posted) {
        Ok(request) => request,
        Err(faults) => {
            let frame = Frame::new(&site, &posted.who);
            let again = page::confirm::page(&frame, &reading, action, &[], &faults);
            return Ok((StatusCode::UNPROCESSABLE_ENTITY, again).into_response());
        }
    };
    let said = steering::ask(&site, &reading, action, request).await?;
    notify(&site, &posted.who, said);
    Ok(Redirect::to(&format!("/moves/{}", reading.of.id)).into_response())
}

fn notify(site: &Site, who: &Identity, said: String) {
    if let Identity::Person { secret, .. } = who {
        site.access.leave(secret, said);
    }
}

// --- a new move

async fn start_page(State(site): State<Arc<Site>>, who: Identity) -> Page {
    if !who.is_operator() {
        return Err(Problem::read_only());
    }
    Ok(page::start::form(
        &Frame::new(&site, &who),
        &site,
        &|_| "",
        &[],
    ))
}

async fn plan(State(site): State<Arc<Site>>, posted: Posted) -> Result<Response, Problem> {
    let frame = Frame::new(&site, &posted.who);
    let start = match steering::start_request(&posted) {
        Ok(start) => start,
        Err(faults) => return Ok(start_again(&frame, &site, &posted, &faults)),
    };
    let plan = site.workflows.plan(&start).await;
    let plan = plan.map_err(|refusal| Problem::from(refusal).leading_to("/start".to_owned()))?;
    Ok(page::start::plan(&frame, &start, &plan).into_response())
}

async fn start(State(site): State<Arc<Site>>, posted: Posted) -> Result<Response, Problem> {
    let frame = Frame::new(&site, &posted.who);
    let start = match steering::start_request(&posted) {
        Ok(start) => start,
        Err(faults) => return Ok(start_again(&frame, &site, &posted, &faults)),
    };
    tracing::info!(org = %start.org, "a move was started from the page");
    let carried_through = {
        let site = Arc::clone(&site);
        tokio::spawn(async move {
            let started = site.workflows.start(&start).await;
            site.news.hurry();
            started
        })
    };
    let started = carried_through.await.map_err(|_| Problem::not_found())?;
    let started =
        started.map_err(|refusal| Problem::from(refusal).leading_to("/start".to_owned()))?;
    Ok(match started {
        Started::Registered(id) => Redirect::to(&format!("/moves/{id}")).into_response(),
        Started::NotYet(why) => {
            notify(&site, &posted.who, why);
            Redirect::to("/").into_response()
        }
    })
}

fn start_again(frame: &Frame, site: &Site, posted: &Posted, faults: &[String]) -> Response {
    let given = |name: &str| posted.whole(name);
    let form = page::start::form(frame, site, &given, faults);
    (StatusCode::UNPROCESSABLE_ENTITY, form).into_response()
}

// --- coming and going

#[derive(Debug)]
struct Login {
    token: String,
    next: String,
}

impl Login {
    fn of(fields: Vec<(String, String)>) -> Self {
        let mut login = Self {
            token: String::new(),
            next: "/".to_owned(),
        };
        for (name, value) in fields {
            match name.as_str() {
                "token" => login.token = value,
                "next" => login.next = within(value),
                _ => {}
            }
        }
        login
    }
}

/// A place on this page: whoever made the address cannot lead elsewhere.
fn within(next: String) -> String {
    let is_ours = next.starts_with('/')
        && !next.starts_with("//")
        && next
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_ours { next } else { "/".to_owned() }
}

async fn login_page(
    State(site): State<Arc<Site>>,
    Query(fields): Query<Vec<(String, String)>>,
) -> Response {
    let login = Login::of(fields);
    if !login.token.is_empty() && site.access.takes_token_in_address() {
        return enter(&site, &login);
    }
    page::login::page(&login.next, false).into_response()
}

async fn login(
    State(site): State<Arc<Site>>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    enter(&site, &Login::of(fields))
}

fn enter(site: &Site, login: &Login) -> Response {
    let Some(role) = site.access.role_of(&login.token) else {
        tracing::warn!("a login with a wrong token");
        let again = page::login::page(&login.next, true);
        return (StatusCode::FORBIDDEN, again).into_response();
    };
    let secret = site.access.begin(role);
    let role_in_words = match role {
        Role::Reader => "reader",
        Role::Operator => "operator",
    };
    tracing::info!(role = role_in_words, "logged in");
    (cookie(site, &secret, None), Redirect::to(&login.next)).into_response()
}

async fn logout(State(site): State<Arc<Site>>, who: Identity) -> Response {
    if let Identity::Person { secret, .. } = &who {
        site.access.end(secret);
    }
    (cookie(&site, "", Some(0)), Redirect::to("/login")).into_response()
}

/// The header that sets the session's cookie, or takes it away.
fn cookie(site: &Site, secret: &str, max_age_seconds: Option<u32>) -> HeaderMap {
    let name = cookie_name(&site.front);
    let secure = if site.front.is_secure() {
        "; Secure"
    } else {
        ""
    };
    let age = max_age_seconds.map_or(String::new(), |seconds| format!("; Max-Age={seconds}"));
    let text = format!("{name}={secret}; Path=/; HttpOnly; SameSite=Lax{secure}{age}");
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(header::SET_COOKIE, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_nowhere_else() {
        for (next, leads_to) in [
            ("/moves/1", "/moves/1"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("/a\r\nSet-Cookie: x", "/"),
            ("", "/"),
        ] {
            assert_eq!(within(next.to_owned()), leads_to, "{next:?}");
        }
    }
}
