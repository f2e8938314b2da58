use super::*;
use crate::dev::world::{Child, Happened};

fn id(kind: &str, name: &str) -> Id {
    Id { kind: kind.into(), namespace: "coder".into(), name: name.into() }
}

fn ready(facts: &[&str]) -> Object {
    Object {
        ready: Some(("True".into(), "Available".into(), "all pods are ready".into())),
        missing: None,
        facts: facts.iter().map(|fact| (*fact).to_owned()).collect(),
    }
}

fn unready(reason: &str) -> Object {
    Object {
        ready: Some(("False".into(), reason.into(), "the message".into())),
        missing: Some(format!("Ready=False {reason}: the message")),
        facts: vec!["tags region=us".into()],
    }
}

fn seen() -> Observed {
    let (plane, pool) = (id("CoderControlPlane", "coder"), id("CoderProvisioner", "pool-us"));
    let mut seen = Observed::default();
    seen.objects
        .insert(plane.clone(), ready(&["simulated coderd v2.36.1", "premium license until 2027-02-15"]));
    seen.objects.insert(pool.clone(), unready("KeyPending"));
    let child = |owner: &Id, state: &str| Child { owner: Some(owner.clone()), state: state.into() };
    seen.children.insert(id("Deployment", "coder"), child(&plane, "1/1"));
    seen.children.insert(id("Service", "coder"), child(&plane, ""));
    seen.children.insert(id("Deployment", "provisioner-pool-us"), child(&pool, "0/1"));
    for second in 0..30 {
        seen.events.push_back(Happened {
            uid: second.to_string(),
            at: Timestamp::from_second(1000 + second).unwrap(),
            about: pool.clone(),
            warning: false,
            text: format!(
                "Event{second}: something happened that takes a long line to tell, longer than most"
            ),
        });
    }
    seen
}

fn guide() -> Guide {
    Guide {
        title: "Kubernetes v1.36.3".into(),
        environment: ". ~/.cache/coder-k8s/dev/env".into(),
        commands: vec![
            (
                "renew the license".into(),
                "kubectl replace -f ~/.cache/coder-k8s/dev/renewed-license.yaml".into(),
            ),
            ("delete everything".into(), "kubectl delete coder --all".into()),
        ],
        pinned: Vec::new(),
    }
}

fn moment(notes: &[(Duration, String)]) -> Moment<'_> {
    Moment {
        now: Timestamp::from_second(1030).unwrap(),
        elapsed: Duration::from_secs(83),
        notes,
        held_lines: 0,
    }
}

fn texts(lines: &[Line]) -> Vec<String> {
    lines.iter().map(Line::text).collect()
}

#[test]
fn a_terminal_with_room_shows_everything() {
    let notes = [(Duration::from_secs(82), "everything is Ready".to_owned())];
    let shown = texts(&frame(&seen(), &guide(), &moment(&notes), Size { columns: 120, rows: 30 }));
    assert_eq!(shown.len(), 30);
    let text = shown.join("\n");
    for part in [
        "coder-k8s dev  1:23  1 of 2 are Ready  Kubernetes v1.36.3\n",
        "● CoderControlPlane  coder/coder    Ready=True Available: all pods are ready\n",
        "    simulated coderd v2.36.1 · premium license until 2027-02-15\n",
        "    Deployment coder 1/1 · Service coder\n",
        "○ CoderProvisioner   coder/pool-us  Ready=False KeyPending\n    Ready=False KeyPending: the message\n",
        "    Deployment provisioner-pool-us 0/1\n",
        "  1s Provisioner pool-us: Event29: something happened",
        "  1s everything is Ready\n",
        "# renew the license\nkubectl replace -f ~/.cache/coder-k8s/dev/renewed-license.yaml\n",
        "Ctrl-C stops the cluster",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn no_size_of_the_terminal_is_exceeded() {
    for columns in [1, 2, 10, 20, 40, 79, 80, 81, 200] {
        for rows in 1..60 {
            let size = Size { columns, rows };
            let lines = frame(&seen(), &guide(), &moment(&[]), size);
            let taken: usize = lines.iter().map(|line| line.rows(columns)).sum();
            assert!(taken <= rows, "{taken} rows in {size:?}: {:#?}", texts(&lines));
            let wide = lines.iter().find(|line| line.rows(columns) == 1 && line.width() > columns);
            assert!(wide.is_none(), "{wide:?} in {size:?}");
        }
    }
}

#[test]
fn a_low_terminal_keeps_the_objects_and_their_reasons() {
    for rows in [3, 8, 12, 16, 20] {
        let shown = texts(&frame(&seen(), &guide(), &moment(&[]), Size { columns: 80, rows })).join("\n");
        assert!(shown.contains("coder/pool-us  Ready=False KeyPending"), "{rows} rows:\n{shown}");
    }
    // 24 rows by 80 columns, the size of a terminal that nobody has enlarged, has room for the commands.
    let shown = texts(&frame(&seen(), &guide(), &moment(&[]), Size { columns: 80, rows: 24 })).join("\n");
    assert!(shown.contains("kubectl delete coder --all") && shown.contains("Event29"), "{shown}");
    assert!(shown.contains("tags region=us"), "{shown}");
    let narrow = texts(&frame(&seen(), &guide(), &moment(&[]), Size { columns: 40, rows: 24 })).join("\n");
    assert!(narrow.contains("○ coder/pool-us  Ready=False KeyPending"), "{narrow}");
}

#[test]
fn a_line_that_fills_the_terminal_is_not_erased() {
    let size = Size { columns: 5, rows: 3 };
    let lines = [Line::new(Style::Plain, "12345"), Line::new(Style::Good, "123")];
    assert_eq!(painted(&lines, size, false), "\x1b[H12345\r\n123\x1b[K\x1b[J");
    assert_eq!(painted(&lines, size, true), "\x1b[H12345\r\n\x1b[32m123\x1b[0m\x1b[K\x1b[J");
}

#[test]
fn the_table_has_every_object_with_what_it_is_made_of() {
    let expected = "\
KIND               NAME           READY  STATUS
CoderControlPlane  coder/coder    True   Available
  simulated coderd v2.36.1, premium license until 2027-02-15
  Deployment coder 1/1, Service coder
CoderProvisioner   coder/pool-us  False  KeyPending
  Ready=False KeyPending: the message
  tags region=us
  Deployment provisioner-pool-us 0/1";
    assert_eq!(texts(&table(&seen())).join("\n"), expected);
    assert_eq!(texts(&table(&Observed::default())), ["there are no objects"]);
}
