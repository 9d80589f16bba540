//! Who is let in, and what no request may do.

use monarch_dashboard::Front;
use reqwest::header;

use crate::fixture::{FORM, OPERATOR, Page, READER, Setting, csrf, form};

#[tokio::test]
async fn without_a_token_nothing_is_shown() {
    let page = Page::open().await;
    let id = page.register("evil-corp", 2).await;
    for path in ["/".to_owned(), format!("/moves/{id}"), "/start".to_owned()] {
        let (status, text) = page.get("", &path).await;
        assert_eq!((status, text.contains("evil-corp")), (303, false), "{path}");
    }
    let bare = page.browser.get(page.url(&format!("/moves/{id}/live")));
    assert_eq!(bare.send().await.unwrap().status(), 401);
    for token in ["", "wrong-token-of-the-tests", &OPERATOR[..22]] {
        let (status, _) = page.post("", "/login", &[("token", token)]).await;
        assert_eq!(status, 403, "{token:?}");
    }
    let (status, _) = page.get("monarch=0000", "/").await;
    assert_eq!(status, 303);
}

#[tokio::test]
async fn a_program_sends_its_token_with_each_request() {
    let page = Page::open().await;
    let with = |token: &str| page.browser.get(page.url("/")).bearer_auth(token);
    assert_eq!(with(READER).send().await.unwrap().status(), 200);
    assert_eq!(
        with("wrong-token-of-the-tests")
            .send()
            .await
            .unwrap()
            .status(),
        401
    );
}

/// The token of a reader can do no harm, whatever the page shows.
#[tokio::test]
async fn a_reader_sees_everything_and_asks_nothing() {
    let page = Page::open().await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    let cookie = page.log_in(READER).await;
    let text = page
        .until(&cookie, &format!("/moves/{id}"), "streaming")
        .await;
    assert!(
        !text.contains("/ask/") && !text.contains("/start"),
        "{text}"
    );
    for path in [format!("/moves/{id}/ask/abort"), "/start".to_owned()] {
        assert_eq!(page.get(&cookie, &path).await.0, 403, "{path}");
        let sent = [("csrf", ""), ("reason", "x"), ("org", "1")];
        assert_eq!(page.post(&cookie, &path, &sent).await.0, 403, "{path}");
        let program = page.browser.post(page.url(&path)).bearer_auth(READER);
        let program = program.header(header::CONTENT_TYPE, FORM).body(form(&sent));
        assert_eq!(program.send().await.unwrap().status(), 403, "{path}");
    }
    assert!(page.temporal.asked.lock().unwrap().is_empty());
    assert!(page.temporal.started.lock().unwrap().is_empty());
}

/// A page elsewhere cannot make an operator's browser ask for anything.
#[tokio::test]
async fn a_form_of_another_session_or_site_asks_nothing() {
    let page = Page::open().await;
    let id = page.register("evil-corp", 2).await;
    let (mine, other) = (page.log_in(OPERATOR).await, page.log_in(OPERATOR).await);
    let path = format!("/moves/{id}/ask/abort");
    let theirs = page.get(&other, &path).await.1;
    for token in ["", csrf(&theirs)] {
        let sent = [("csrf", token), ("reason", "x")];
        assert_eq!(page.post(&mine, &path, &sent).await.0, 403);
    }
    let own = page.get(&mine, &path).await.1;
    let sent = form(&[("csrf", csrf(&own)), ("reason", "x")]);
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let from = page
            .browser
            .post(page.url(&path))
            .header(header::COOKIE, &mine);
        let from = from.header(header::CONTENT_TYPE, FORM).header(name, value);
        let answer = from.body(sent.clone()).send().await.unwrap();
        assert_eq!(answer.status(), 403, "{name}: {value}");
    }
    assert!(page.temporal.asked.lock().unwrap().is_empty());
}

/// Guards against a name of an attacker that points at this machine.
#[tokio::test]
async fn another_host_is_refused_whoever_asks() {
    let page = Page::open().await;
    for path in ["/", "/login", "/assets/x"] {
        let asked = page.browser.get(page.url(path)).bearer_auth(OPERATOR);
        let answer = asked
            .header(header::HOST, "evil.example")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 421, "{path}");
    }
}

#[tokio::test]
async fn what_did_not_come_by_the_proxy_is_refused() {
    let front = Front {
        hosts: vec!["127.0.0.1".to_owned()],
        proxy_header: Some("X-Forwarded-Proto".to_owned()),
        ..Front::default()
    };
    let page = Page::with(Setting {
        front,
        ..Setting::default()
    })
    .await;
    let asked = || page.browser.get(page.url("/")).bearer_auth(OPERATOR);
    assert_eq!(asked().send().await.unwrap().status(), 403);
    for (said, status) in [("http", 403), ("https, http", 403), ("https", 200)] {
        let answer = asked()
            .header("x-forwarded-proto", said)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{said}");
    }
    let sent = page
        .browser
        .post(page.url("/login"))
        .header("x-forwarded-proto", "https");
    let sent = sent
        .header(header::CONTENT_TYPE, FORM)
        .body(form(&[("token", OPERATOR)]));
    let answer = sent.send().await.unwrap();
    let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
    assert!(
        cookie.starts_with("__Host-") && cookie.contains("; Secure"),
        "{cookie}"
    );
}

/// Every answer carries what keeps a browser from running, framing or keeping more than it should.
#[tokio::test]
async fn every_answer_is_dressed() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    let (_, text) = page.get(&cookie, "/").await;
    let (_, rest) = text.split_once("<script src=\"").unwrap();
    let script = rest.split('"').next().unwrap();
    for path in [
        "/",
        "/login",
        "/no-such-page",
        "/live",
        "/moves/x/live",
        script,
    ] {
        let asked = page
            .browser
            .get(page.url(path))
            .header(header::COOKIE, &cookie);
        let answer = asked.send().await.unwrap();
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("x-frame-options"), "DENY", "{path}");
        assert_eq!(header("referrer-policy"), "same-origin", "{path}");
        let is_file = path == script;
        assert_eq!(
            header("cache-control").contains("no-store") || path.ends_with("live"),
            !is_file,
            "{path}"
        );
    }
    let set = page
        .browser
        .post(page.url("/login"))
        .header(header::CONTENT_TYPE, FORM);
    let answer = set.body(form(&[("token", READER)])).send().await.unwrap();
    let cookie = answer.headers()[header::SET_COOKIE].to_str().unwrap();
    for said in ["HttpOnly", "SameSite=Lax", "Path=/"] {
        assert!(cookie.contains(said), "{cookie}");
    }
}

/// What the policy forbids, the pages do not have.
#[tokio::test]
async fn no_page_has_a_script_or_a_style_in_it() {
    let page = Page::open().await;
    let id = page.register("evil-corp", 2).await;
    page.stream(id).await;
    let cookie = page.log_in(OPERATOR).await;
    page.until(&cookie, &format!("/moves/{id}"), "streaming")
        .await;
    for path in [
        "/".to_owned(),
        "/login".to_owned(),
        "/start".to_owned(),
        format!("/moves/{id}"),
        format!("/moves/{id}/stores/0"),
        format!("/moves/{id}/ask/abort"),
    ] {
        let (_, text) = page.get(&cookie, &path).await;
        for forbidden in ["<style", " style=", "onclick", "javascript:", "<script>"] {
            assert!(!text.contains(forbidden), "{path} has {forbidden}");
        }
    }
}

#[tokio::test]
async fn who_logs_out_is_out() {
    let page = Page::open().await;
    let cookie = page.log_in(OPERATOR).await;
    assert_eq!(page.get(&cookie, "/").await.0, 200);
    assert_eq!(page.post(&cookie, "/logout", &[]).await.0, 303);
    assert_eq!(page.get(&cookie, "/").await.0, 303);
}
