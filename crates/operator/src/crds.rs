//! `coder-k8s crds`: the CRDs of this release, for `kubectl apply`.

use anyhow::Result;

use crate::print::{self, Format};

/// The CRDs as text in this format.
pub(crate) fn render(format: Format) -> Result<String> {
    let crds: Vec<_> = coder_k8s_api::crds().iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    print::objects(format, &crds)
}
