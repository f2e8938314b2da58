//! What a person reads of an object: its row of `kubectl get`, and its events.

use std::{process::Command, time::Duration};

use k8s_openapi::api::events::v1::Event;
use kube::api::{GetParams, ListParams};
use serde_json::{Value, json};

use super::{Kind, Scene};

/// An event as `kubectl describe` shows it.
#[derive(Clone, Debug)]
pub struct Told {
    /// Whether its type is `Warning`.
    pub warning: bool,
    /// The reason.
    pub reason: String,
    /// The sentence.
    pub message: String,
    /// How often it was published.
    pub count: i32,
}

impl Scene {
    /// What `kubectl get` shows for an object: a list of columns, each a list of its name and value; with `wide`, what it
    /// shows with `--output=wide`. The age, which must be the last column that is always shown, is left out.
    pub async fn row<K: Kind>(&self, name: &str, wide: bool) -> Value {
        let path = K::url_path(&(), Some(&self.namespace));
        let mut request = kube::core::Request::new(path).get(name, &GetParams::default()).unwrap();
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io".parse().unwrap();
        request.headers_mut().insert("accept", accept);
        let table: Value = self.client.request(request).await.unwrap();
        assert_eq!(table["rows"].as_array().map(Vec::len), Some(1), "{table}");
        let definitions = table["columnDefinitions"].as_array().unwrap();
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(definitions.len(), cells.len(), "{table}");
        let mut shown: Vec<_> =
            definitions.iter().zip(cells).filter(|(column, _)| wide || column["priority"] == 0).collect();
        // What is shown only with `wide` comes after the rest, so that no column moves.
        let always = shown.iter().take_while(|(column, _)| column["priority"] == 0).count();
        assert!(shown.iter().skip(always).all(|(column, _)| column["priority"] == 1), "{definitions:?}");
        let (last, age) = shown.remove(always - 1);
        let is_age = age.as_str().is_some_and(|age| age.starts_with(|c: char| c.is_ascii_digit()));
        assert!(last["name"] == "Age" && is_age, "{last}: {age}");
        shown.iter().map(|(column, cell)| json!([column["name"], cell])).collect()
    }

    /// What kubectl prints for a command about the namespace of the test.
    pub fn kubectl(&self, args: &[&str]) -> String {
        let program = self.cluster().binaries().kubectl().unwrap();
        let mut command = Command::new(program);
        command
            .arg("--kubeconfig")
            .arg(self.cluster().kubeconfig_path())
            .args(["--namespace", &self.namespace]);
        let output = command.args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Prints what `kubectl get` shows of a kind, and asserts that it fits into a terminal of 120 columns.
    pub fn assert_table_fits(&self, plural: &str) {
        let (narrow, wide) =
            (self.kubectl(&["get", plural]), self.kubectl(&["get", plural, "--output=wide"]));
        println!("{narrow}\n{wide}");
        for line in narrow.lines() {
            assert!(line.chars().count() <= 120, "{} characters: {line}", line.chars().count());
        }
    }

    /// The operator's events about an object as `kubectl describe` shows them, oldest first.
    pub async fn told(&self, kind: &str, name: &str) -> Vec<Told> {
        let mut all = self.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        all.retain(|event| event.reporting_controller.as_deref() == Some("coder-k8s"));
        all.retain(|event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|r| r.kind.as_deref() == Some(kind) && r.name.as_deref() == Some(name))
        });
        all.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let told = all.into_iter().map(|event| Told {
            warning: event.type_.as_deref() == Some("Warning"),
            reason: event.reason.unwrap_or_default(),
            message: event.note.unwrap_or_default(),
            count: event.series.map_or(1, |series| series.count),
        });
        told.collect()
    }

    /// Prints the events of a whole life in which nothing went wrong, and asserts that none is a warning, that they are a
    /// handful for each step, and that these reasons are among them.
    pub async fn assert_calm_life(&self, kind: &str, name: &str, at_most: i32, reasons: &[&str]) {
        // An event follows the status that it tells of.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let told = self.told(kind, name).await;
        let count: i32 = told.iter().map(|event| event.count).sum();
        println!("{count} events in the life of {kind} {name}:");
        for Told { warning, reason, message, count } in &told {
            println!("  {} {reason} x{count}: {message}", if *warning { "Warning" } else { "Normal " });
        }
        assert!(told.iter().all(|event| !event.warning), "{told:?}");
        assert!(count <= at_most, "{count} events: {told:?}");
        for reason in reasons {
            assert!(told.iter().any(|event| event.reason == *reason), "{reason} is not told: {told:?}");
        }
    }
}
