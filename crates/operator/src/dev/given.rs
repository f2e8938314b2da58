//! The manifests of `dev`: the samples, and those of `-f`. Files are read before anything is built or started, so that
//! a bad one is reported at once.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use coder_k8s_api::CoderKind;
use coder_k8s_api::samples::{SAMPLES, Sample};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, GroupVersionKind, Patch, PatchParams},
    discovery::{self, Scope},
};
use serde_json::{Value, json};

use super::{console::Console, world::Id};

/// An object to apply.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    /// Where it comes from, for errors.
    source: String,
    gvk: GroupVersionKind,
    pub(super) object: DynamicObject,
}

/// The samples that belong together.
pub(super) fn samples() -> Result<Vec<Manifest>> {
    let story = SAMPLES.iter().filter(|sample| !sample.is_variant());
    let parsed: Vec<_> = story.map(sample).collect::<Result<_>>()?;
    Ok(parsed.into_iter().flatten().collect())
}

pub(super) fn sample(sample: &Sample) -> Result<Vec<Manifest>> {
    parse(&format!("sample {}", sample.file), sample.yaml)
}

/// Reads files, and the manifests of folders. Anything that is no manifest is an error that names the file.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<Manifest>> {
    let mut all = Vec::new();
    for path in paths {
        for file in files(path)? {
            let source = format!("-f {}", file.display());
            let text = fs::read_to_string(&file).with_context(|| format!("cannot read {source}"))?;
            let found = parse(&source, &text)?;
            if found.is_empty() {
                bail!("{source} holds no manifest");
            }
            all.extend(found);
        }
    }
    Ok(all)
}

/// The file itself, or the manifests that are directly in a folder, by name.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let what = || format!("cannot read -f {}", path.display());
    if !fs::metadata(path).with_context(what)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(what)?.collect::<Result<Vec<_>, _>>().with_context(what)?;
    let is_manifest = |path: &PathBuf| {
        path.is_file()
            && path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known))
    };
    let mut found: Vec<_> = entries.iter().map(fs::DirEntry::path).filter(is_manifest).collect();
    found.sort();
    if found.is_empty() {
        bail!("-f {}: the folder has no .yaml, .yml or .json file", path.display());
    }
    Ok(found)
}

/// Parses YAML or JSON documents. A `List` stands for its items.
fn parse(source: &str, text: &str) -> Result<Vec<Manifest>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).with_context(|| format!("{source} is not YAML"))?;
    let mut all = Vec::new();
    for (at, document) in documents.into_iter().enumerate().filter(|(_, document)| !document.is_null()) {
        let items = match document.get("items").and_then(Value::as_array) {
            Some(items) if document.get("kind").is_some_and(|kind| kind == "List") => items.clone(),
            _ => vec![document],
        };
        for item in items {
            all.push(manifest(source, item).with_context(|| format!("{source}, document {}", at + 1))?);
        }
    }
    Ok(all)
}

fn manifest(source: &str, document: Value) -> Result<Manifest> {
    for (field, pointer) in
        [("apiVersion", "/apiVersion"), ("kind", "/kind"), ("metadata.name", "/metadata/name")]
    {
        if !document.pointer(pointer).is_some_and(Value::is_string) {
            bail!("not a manifest of Kubernetes: it has no {field}");
        }
    }
    let object: DynamicObject = serde_json::from_value(document)?;
    let types = object.types.clone().unwrap_or_default();
    let gvk = GroupVersionKind::try_from(&types).context("apiVersion")?;
    Ok(Manifest { source: source.to_owned(), gvk, object })
}

/// Applies manifests, as a person would and not as the operator does, and creates their namespaces. Returns those of
/// our kinds.
pub(super) async fn apply(client: &Client, manifests: Vec<Manifest>, console: &Console) -> Result<Vec<Id>> {
    let mut ours = Vec::new();
    for Manifest { source, gvk, mut object } in manifests {
        let kind = gvk.kind.clone();
        let (resource, capabilities) = discovery::pinned_kind(client, &gvk).await.with_context(|| {
            format!("{source}: the cluster does not know {kind} of {}", gvk.api_version())
        })?;
        let api: Api<DynamicObject> = if capabilities.scope == Scope::Namespaced {
            let namespace = object.metadata.namespace.get_or_insert_with(|| "default".to_owned()).clone();
            apply_namespace(client, &namespace).await?;
            Api::namespaced_with(client.clone(), &namespace, &resource)
        } else {
            Api::all_with(client.clone(), &resource)
        };
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let id = Id { kind, namespace, name };
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&id.name, &params, &Patch::Apply(&object)).await;
        if let Err(error) = applied {
            bail!("{source}: the cluster refuses {id}: {}", refusal(&error));
        }
        console.change(&format!("applied {id}"));
        if CoderKind::named(&id.kind).is_some() && !ours.contains(&id) {
            ours.push(id);
        }
    }
    Ok(ours)
}

/// Field manager of what `dev` applies.
const MANAGER: &str = "coder-k8s-dev";

/// The sentence of the API server, without its wrapping.
fn refusal(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Applies one object that this program made.
pub(super) async fn apply_value(client: &Client, object: Value) -> Result<()> {
    let Manifest { gvk, object, .. } = manifest("dev", object)?;
    let resource = kube::api::ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let (name, params) = (object.name_any(), PatchParams::apply(MANAGER).force());
    let applied = api.patch(&name, &params, &Patch::Apply(&object)).await;
    applied.with_context(|| format!("cannot apply {} {name}", gvk.kind))?;
    Ok(())
}

pub(super) async fn apply_namespace(client: &Client, name: &str) -> Result<()> {
    apply_value(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", parse("-f a.yaml", text).unwrap_err())
    }

    #[test]
    fn documents_and_lists_are_manifests() {
        let text = "---\nkind: A\napiVersion: v1\nmetadata: {name: a}\n---\n\
                    {kind: List, apiVersion: v1, items: [{kind: B, apiVersion: g/v1, metadata: {name: b}}]}\n";
        let kinds: Vec<_> = parse("x", text).unwrap().into_iter().map(|one| one.gvk.kind).collect();
        assert_eq!(kinds, ["A", "B"]);
        assert!(parse("x", "# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn a_bad_file_is_named_with_what_is_wrong() {
        assert!(
            refused("kind: A\n  b: [").starts_with("-f a.yaml is not YAML: "),
            "{}",
            refused("kind: A\n  b: [")
        );
        let second = "kind: A\napiVersion: v1\nmetadata: {name: a}\n---\nkind: A\napiVersion: v1\n";
        assert_eq!(
            refused(second),
            "-f a.yaml, document 2: not a manifest of Kubernetes: it has no metadata.name"
        );
        assert!(refused("just text").contains("it has no apiVersion"));
        let missing = format!("{:#}", read(&["/nowhere/x.yaml".into()]).unwrap_err());
        assert!(missing.starts_with("cannot read -f /nowhere/x.yaml: No such file"), "{missing}");
        let folder = std::env::temp_dir().join(format!("coder-k8s-given-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let empty = format!("{:#}", read(std::slice::from_ref(&folder)).unwrap_err());
        assert!(empty.ends_with("the folder has no .yaml, .yml or .json file"), "{empty}");
        fs::write(folder.join("b.yaml"), "kind: A\napiVersion: v1\nmetadata: {name: a}").unwrap();
        fs::write(folder.join("notes.txt"), "no manifest").unwrap();
        assert_eq!(read(std::slice::from_ref(&folder)).unwrap().len(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_samples_are_one_control_plane_and_what_refers_to_it() {
        let samples = samples().unwrap();
        let of = |kind: &str| samples.iter().filter(|one| one.gvk.kind == kind).collect::<Vec<_>>();
        let [plane] = of("CoderControlPlane")[..] else { panic!("one control plane") };
        assert_eq!((of("CoderProvisioner").len(), of("CoderWorkspaceProxy").len(), samples.len()), (2, 1, 4));
        for one in &samples {
            assert_eq!(one.object.metadata.namespace.as_deref(), Some(super::super::NAMESPACE));
            if one.gvk.kind != "CoderControlPlane" {
                let name = one.object.data.pointer("/spec/controlPlaneRef/name");
                assert_eq!(name.and_then(Value::as_str), plane.object.metadata.name.as_deref());
            }
        }
    }
}
