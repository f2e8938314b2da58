//! A coderd that answers 429 for a while: it is asked as seldom as it says, and nothing is lost.
//!
//! Time is scaled by fifteen: five minutes are 20 s, and a Retry-After of 60 s is one of 4 s.

use std::time::{Duration, Instant};

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_testbed::codersim::{Entry, SimFault};
use jiff::SignedDuration;
use serde_json::json;

use coder_k8s_scenes::{
    proxy::{ProxyScene, condition, is, is_settled, status},
    writes,
};

use crate::OPERATOR;

const LIMITED: Duration = Duration::from_secs(20);
const RETRY_AFTER: Duration = Duration::from_secs(4);
/// The backoff may have grown to 16 s by the end.
const RECOVERED: Duration = Duration::from_secs(40);
/// Calls that were under way at the same time: none of them knew yet.
const TOGETHER: SignedDuration = SignedDuration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_is_respected_and_outlived() {
    let site = ProxyScene::ready(&OPERATOR, "limits", json!({})).await;
    let before = site.assert_consistent().await;
    site.sim().fault("*", "/api/v2/**", SimFault::rate_limited(RETRY_AFTER), None);
    let mark = site.sim().mark();
    let since = site.scene().requests_in(&site.scene().namespace).len();
    site.edit(json!({"registration": {"displayName": "Europe"}})).await;
    site.make_as("new", json!({"controlPlaneRef": {"name": "coder"}})).await;
    tokio::time::sleep(LIMITED).await;
    site.scene()
        .until("new", |proxy: &CoderWorkspaceProxy| is(proxy, "Registered", "False", Some("RateLimited")))
        .await;
    let during = site.now().await;
    assert_eq!(status(&during).proxy_id.as_ref(), Some(&before.id));
    let registered = condition(&during, "Registered").unwrap();
    assert_eq!(registered.status, "True", "what works is not withdrawn: {registered:?}");
    let calls = site.sim().since(mark);
    let asked = site.scene().requests_in(&site.scene().namespace).split_off(since);
    site.sim().clear_faults();
    let cleared = Instant::now();
    let limited: Vec<&Entry> = calls.iter().filter(|entry| entry.status == Some(429)).collect();
    let wait = SignedDuration::try_from(RETRY_AFTER).unwrap() - SignedDuration::from_millis(50);
    let early = |entry: &&Entry| {
        limited.iter().any(|refused| {
            let after = entry.at.duration_since(refused.at);
            after > TOGETHER && after < wait
        })
    };
    let early: Vec<_> = calls.iter().filter(early).collect();
    let statuses = writes(&asked).into_iter().filter(|event| event.subresource == "status");
    let statuses = statuses.filter(|event| event.resource == "coderworkspaceproxies").count();
    println!(
        "{} calls in {LIMITED:?}, {} of them refused, {} too early; {statuses} writes of status",
        calls.len(),
        limited.len(),
        early.len()
    );
    let most = usize::try_from(LIMITED.as_secs() / RETRY_AFTER.as_secs()).unwrap() + 1;
    assert!(!limited.is_empty() && limited.len() <= 3 * most, "{limited:?}");
    assert!(early.is_empty(), "{early:?}");
    assert!(statuses <= 6, "{statuses}");
    for name in ["eu", "new"] {
        site.scene().until(name, is_settled).await;
    }
    println!("both are ready {:.1?} after the limit ended", cleared.elapsed());
    assert!(cleared.elapsed() < RECOVERED, "{:?}", cleared.elapsed());
    site.until_holds(&["eu", "new"]).await;
}
