//! The page of the alerts: their rules from `config/observability/alerts.yaml`, and what they mean and what to do from here.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use anyhow::{Context, Result, ensure};
use coder_k8s_testbed::observability::{Alert, alerts};

use crate::run::root;

/// What a person on call needs to know about an alert, as Markdown.
struct Runbook {
    alert: &'static str,
    meaning: &'static str,
    /// What to do, in this order.
    steps: &'static [&'static str],
}

/// Groups of rules with their headings.
const GROUPS: &[(&str, &str)] = &[
    ("coder-k8s.licenses", "Licenses"),
    ("coder-k8s.control-planes", "Control planes"),
    ("coder-k8s.pools", "Pools"),
    ("coder-k8s.proxies", "Workspace proxies"),
    ("coder-k8s.operator", "The operator"),
];

const RENEW: &[&str] = &[
    "Get a new license from Coder.",
    "Put it into the Secret that `spec.licenseSecretRef` names. The operator notices at once and sends it to coderd.",
    "Check that coderd holds it: `kubectl wait --for=condition=LicenseApplied codercontrolplane/NAME`.",
];

const RUNBOOKS: &[Runbook] = &[
    Runbook {
        alert: "CoderLicenseExpiresIn30Days",
        meaning: "The license of a control plane expires in less than 30 days. Nothing is affected yet.",
        steps: RENEW,
    },
    Runbook {
        alert: "CoderLicenseExpiresIn7Days",
        meaning: "The license of a control plane expires in less than 7 days. Nothing is affected yet.",
        steps: RENEW,
    },
    Runbook {
        alert: "CoderLicenseExpiresIn1Day",
        meaning: "The license of a control plane expires in less than one day.",
        steps: RENEW,
    },
    Runbook {
        alert: "CoderLicenseExpired",
        meaning: "The license of a control plane has expired. coderd disables licensed features, such as external provisioners and \
            workspace proxies, when the grace period of the license ends.",
        steps: RENEW,
    },
    Runbook {
        alert: "CoderControlPlaneNotReady",
        meaning: "The condition `Ready` of a CoderControlPlane has not been True for 15 minutes: a rollout does not end, a child is \
            somebody else's, or something that the spec asks for is missing. coderd may still serve with its old pods.",
        steps: &[
            "Read the message of `Ready` with `kubectl describe codercontrolplane NAME`, and its [reason](reasons.md).",
            "If pods do not start, see `kubectl get pods --selector app.kubernetes.io/instance=NAME` and their logs.",
            "If `Stalled` is True, only an edit helps: the message names the field or the object.",
        ],
    },
    Runbook {
        alert: "CoderOperatorAccessLost",
        meaning: "coderd, or its database, has not accepted the operator for 15 minutes. What runs goes on. The operator can neither apply \
            a license nor verify or replace keys and registrations. An access that is disabled, or that has no database URL, is no alert.",
        steps: &[
            "Read the message of `OperatorAccessReady` with `kubectl describe codercontrolplane NAME`, and its [reason](reasons.md).",
            "For a database: check that it runs, that a NetworkPolicy lets the operator reach it, and that `CODER_PG_CONNECTION_URL` is right.",
            "For a token: check that the Secret in `operatorAccess.tokenSecretRef` holds a token of an owner that coderd accepts.",
        ],
    },
    Runbook {
        alert: "CoderJobsNotRunnable",
        meaning: "Provisioner jobs wait, and no connected daemon has the tags to run them. Users see builds that never start.",
        steps: &[
            "Read the message of `JobsRunnable` with `kubectl describe codercontrolplane NAME`: it names the tags, and the pool that would run them.",
            "If there is such a pool, scale it up or see why its daemons are not connected. If it has `spec.autoscaling`, its condition `Autoscaling` says why it does not grow.",
            "If there is none, create a CoderProvisioner with these tags, or correct the tags of the template.",
        ],
    },
    Runbook {
        alert: "CoderJobsWaitLong",
        meaning: "A provisioner job has waited for more than 15 minutes. Daemons for it exist unless [CoderJobsNotRunnable](#coderjobsnotrunnable) \
            fires too: there are too few of them, or their jobs take long.",
        steps: &[
            "See in the dashboard whether the daemons of the pool are busy all the time.",
            "Raise `spec.replicas` of the CoderProvisioner with these tags, or `spec.autoscaling.maxReplicas` if it is scaled. Then its condition `Autoscaling` says why it does not grow.",
            "If a job hangs, cancel it in coderd.",
        ],
    },
    Runbook {
        alert: "CoderProvisionerNotReady",
        meaning: "The condition `Ready` of a CoderProvisioner has not been True for 15 minutes: its key, its Secret or its rollout is not done.",
        steps: &[
            "Read the message of `Ready` with `kubectl describe coderprovisioner NAME`, and its [reason](reasons.md).",
            "See whether an alert of its control plane fires: without operator access there are no keys.",
        ],
    },
    Runbook {
        alert: "CoderDaemonsMissing",
        meaning: "Some daemons of a pool have not been connected to coderd for 15 minutes. Its jobs run on the others. Daemons that a scaled \
            pool adds and that connect within five minutes are no alert.",
        steps: &[
            "Read the message of `DaemonsConnected` with `kubectl describe coderprovisioner NAME`: it names the pods.",
            "See the logs of these pods, or why they are not ready: `kubectl get pods --selector app.kubernetes.io/name=coder-provisioner,app.kubernetes.io/instance=NAME`.",
        ],
    },
    Runbook {
        alert: "CoderDaemonsAllMissing",
        meaning: "No daemon of a pool has been connected to coderd for 10 minutes. Jobs with its tags wait, unless another pool has them too.",
        steps: &[
            "Read the messages of `Ready` and `DaemonsConnected` with `kubectl describe coderprovisioner NAME`.",
            "If no pod is ready, see `kubectl get pods --selector app.kubernetes.io/name=coder-provisioner,app.kubernetes.io/instance=NAME`.",
            "If pods are ready, see their logs: coderd may refuse their key, their version or their license.",
        ],
    },
    Runbook {
        alert: "CoderPoolAtMaximum",
        meaning: "Jobs have waited for 10 minutes for a pool that has as many daemons as `spec.autoscaling.maxReplicas` permits.",
        steps: &[
            "See in the row *Scaled pools* of the dashboard how many jobs wait, for how long, and whether all daemons are busy.",
            "Raise `spec.autoscaling.maxReplicas` of the CoderProvisioner, if the cluster has room for more pods.",
            "If builds take long or hang, see them in coderd, and cancel those that hang.",
        ],
    },
    Runbook {
        alert: "CoderPoolStartsFail",
        meaning: "A scaled pool needs more daemons, and its pods have not started, or the API server has refused them, for 10 minutes. \
            The pool stops growing, so that it does not add pods that fail too.",
        steps: &[
            "Read the message of `Autoscaling` with `kubectl describe coderprovisioner NAME`.",
            "If the API server refuses pods, see the events of the ReplicaSet, and raise the quota of the namespace or lower `spec.autoscaling.maxReplicas`.",
            "If pods do not start, see `kubectl describe pods --selector app.kubernetes.io/name=coder-provisioner,app.kubernetes.io/instance=NAME`: an image, a Secret, no room on any node.",
            "If pods are ready, read the message of `DaemonsConnected`: coderd may refuse their key, their version or their license.",
        ],
    },
    Runbook {
        alert: "CoderPoolQueueUnknown",
        meaning: "coderd has not listed the jobs of a scaled pool for 15 minutes. The pool does not grow for jobs that wait. No daemon that may run \
            a build leaves; pods whose daemon never connected do.",
        steps: &[
            "Read the message of `Autoscaling` with `kubectl describe coderprovisioner NAME`: it says since when, or that the jobs have too many different tags.",
            "Read the messages of `OperatorAccessReady` and `JobsRunnable` of its control plane: coderd does not answer, or refuses the token.",
            "If the pool has a token of its own, check that it may list jobs.",
        ],
    },
    Runbook {
        alert: "CoderWorkspaceProxyNotReady",
        meaning: "The condition `Ready` of a CoderWorkspaceProxy has not been True for 15 minutes: its registration, its Secret, its Service or \
            its rollout is not done.",
        steps: &[
            "Read the message of `Ready` with `kubectl describe coderworkspaceproxy NAME`, and its [reason](reasons.md).",
            "See whether an alert of its control plane fires: without credentials there is no registration.",
        ],
    },
    Runbook {
        alert: "CoderWorkspaceProxyUnhealthy",
        meaning: "coderd has not reached a workspace proxy for 15 minutes, or the proxy reports errors. Users near it have slow workspaces or none.",
        steps: &[
            "Read the message of `Healthy` with `kubectl describe coderworkspaceproxy NAME`.",
            "Open the access URL of the proxy from where coderd runs: check DNS, Ingress and certificates.",
            "See the logs of its pods.",
        ],
    },
    Runbook {
        alert: "CoderOperatorAbsent",
        meaning: "Prometheus has scraped no instance of the operator for 5 minutes. What runs goes on, but nothing is repaired, rotated or \
            renewed, and no other alert of this page can fire. With several clusters in one Prometheus it fires when the last one is gone.",
        steps: &[
            "Check that the operator runs: `kubectl get pods --all-namespaces --selector app.kubernetes.io/name=coder-k8s`.",
            "If it runs, check the targets of Prometheus: the port is `metrics`, and a NetworkPolicy must let Prometheus reach it.",
        ],
    },
    Runbook {
        alert: "CoderOperatorNotLeading",
        meaning: "Instances of the operator run, and none has led for 5 minutes: the lease cannot be written, or a watch or a CRD is missing. \
            Nothing is reconciled, and alerts about objects cannot fire.",
        steps: &[
            "See `/readyz` of an instance: it has a line for each watch, CRD and the lease.",
            "See who holds the lease: `kubectl get lease --all-namespaces | grep coder-k8s-controller`.",
            "See the log of an instance for the reason.",
        ],
    },
    Runbook {
        alert: "CoderOperatorReconcileErrors",
        meaning: "Reconciles of a kind have failed with the same reason again and again for 15 minutes. Conflicts and a change of the leader do not count.",
        steps: &[
            "Look up the [reason](reasons.md) of the alert.",
            "See the log of the leader: each failure names its object.",
            "For `Forbidden`, install the RBAC of this release; for `SchemaSkew`, its CRDs.",
        ],
    },
    Runbook {
        alert: "CoderOperatorQueueWait",
        meaning: "Objects that are due wait for more than 30 seconds for a free worker. Edits take effect late.",
        steps: &[
            "Compare reconcile duration and duration of calls in the dashboard: a slow API server makes every reconcile slow.",
            "Give the operator more CPU if it uses all it has.",
            "Raise `--concurrency`.",
        ],
    },
    Runbook {
        alert: "CoderOperatorWatchRestarts",
        meaning: "A watch has failed more than five times in 15 minutes. Between its failures the operator may act on an old view, which it \
            checks before anything that cannot be undone.",
        steps: &[
            "Look for `watch failed` in the log: it has the answer of the API server.",
            "If a permission is missing, install the RBAC of this release.",
            "If the API server ends connections, see its own metrics.",
        ],
    },
    Runbook {
        alert: "CoderOperatorUnparsableObjects",
        meaning: "Objects exist that this version of the operator cannot read. It leaves them alone: they are neither changed nor repaired.",
        steps: &[
            "See the log of the operator: it names each object and the field.",
            "Correct the object, or run the release of the operator that belongs to the installed CRDs.",
        ],
    },
    Runbook {
        alert: "CoderOperatorSeriesOmitted",
        meaning: "There are more objects or queues of jobs than the operator exports series for. Objects in trouble come first in each namespace; \
            those that are left out have no alerts.",
        steps: &[
            "Find the namespace with very many objects: `kubectl get coder --all-namespaces`.",
            "Split the fleet between operators with `--watch-namespaces`, or alert on `coder_k8s_objects`, which counts all of them.",
        ],
    },
];

/// The page, as Markdown, without the mark of generated files.
pub(crate) fn page() -> Result<String> {
    let file = root().join("config/observability/alerts.yaml");
    let yaml = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let alerts = alerts(&yaml).with_context(|| format!("cannot parse {}", file.display()))?;
    let known: BTreeSet<_> = alerts.iter().map(|alert| alert.name.as_str()).collect();
    let explained: BTreeSet<_> = RUNBOOKS.iter().map(|runbook| runbook.alert).collect();
    ensure!(known == explained, "RUNBOOKS in xtask/src/reference/alerts.rs and alerts.yaml differ");
    let mut page =
        "# Alerts\n\n`config/observability/alerts.yaml` is a rule file of Prometheus with these alerts. \
        [Metrics](metrics.md) explains what their expressions are made of.\n\n\
        | Alert | Severity | Fires after |\n|---|---|---|\n"
            .to_owned();
    for Alert { name, labels, pending, .. } in &alerts {
        let severity = labels.get("severity").map(String::as_str).unwrap_or_default();
        let _ = writeln!(page, "| [{name}](#{}) | {severity} | {pending} |", name.to_lowercase());
    }
    page.push_str(
        "\n`critical`: users are affected or will be within a day. `warning`: something is broken, and what runs goes on. `info`: \
         something is to be done soon.\n",
    );
    for (group, heading) in GROUPS {
        let _ = write!(page, "\n## {heading}\n");
        for alert in alerts.iter().filter(|alert| alert.group == *group) {
            let runbook = RUNBOOKS.iter().find(|runbook| runbook.alert == alert.name);
            section(&mut page, alert, runbook.context("checked above")?);
        }
    }
    let ungrouped = alerts.iter().find(|alert| GROUPS.iter().all(|(group, _)| *group != alert.group));
    ensure!(ungrouped.is_none(), "GROUPS in xtask/src/reference/alerts.rs lacks a group of alerts.yaml");
    Ok(page)
}

fn section(page: &mut String, alert: &Alert, runbook: &Runbook) {
    let Alert { name, expr, pending, labels, .. } = alert;
    let severity = labels.get("severity").map(String::as_str).unwrap_or_default();
    let _ = write!(
        page,
        "\n### {name}\n\n{}\n\nSeverity `{severity}`, after {pending}:\n\n```promql\n{}\n```\n\nWhat to do:\n\n",
        runbook.meaning,
        expr.trim(),
    );
    for (number, step) in runbook.steps.iter().enumerate() {
        let _ = writeln!(page, "{}. {step}", number + 1);
    }
}
