//! The release artefacts: a static program, an image, the chart, CRDs, manifests, a bill of materials, and checksums of all.
//!
//! Nothing here needs a container engine or the network. What is packed twice is the same twice: the bytes depend on the
//! program, the CA bundle, the commit and its time. `docs/artefacts.md` describes the files for those who use them.

mod archive;
mod authorities;
mod chart;
mod check;
mod elf;
mod image;
mod program;
mod sbom;
mod source;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use coder_k8s::{
    manifests::{self, Install},
    print::{Format, objects},
};

use crate::run::{root, say, target};
use archive::sha256;
use authorities::Authorities;
use elf::Executable;
use image::{Contents, Image};
use program::Profile;
use sbom::{Described, Graph};
use source::{Source, VERSION};

/// The folder of the image layout, beside the files.
const LAYOUT: &str = "image";
const CHECKSUMS: &str = "SHA256SUMS";
const CHART: &str = "charts/coder-k8s";

/// Flags of the chore. The doc comments are the text of `--help`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Pack this static program instead of building one
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    binary: Option<PathBuf>,
    /// How to build the program
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// The CA bundle of the image, as PEM [default: that of this machine's distribution]
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// Then validate the image with skopeo and umoci, and run the operator from it against a test cluster
    #[arg(long)]
    check: bool,
}

/// Makes the artefacts, and with `--check` tries them out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let began = Instant::now();
    let source = Source::of_work_tree()?;
    say(&format!("dist: coder-k8s {VERSION}, commit {}, of {}", source.commit, source.created()));
    let authorities = Authorities::get(options.ca_bundle.as_deref())?;
    let file = if let Some(file) = &options.binary {
        file.clone()
    } else {
        say("dist: building the static program");
        program::build(&source, options.profile)?
    };
    let program = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let executable = Executable::read(&program).with_context(|| format!("cannot pack {}", file.display()))?;
    if !executable.is_static {
        bail!("{} needs a loader, and an image from scratch has none: link it statically", file.display());
    }
    say(&format!("dist: CA bundle: {} authorities from {}", authorities.count, authorities.origin));

    let artefacts = Artefacts::pack(&program, &authorities, executable.architecture, &source)?;
    let folder = target()?.join("dist");
    artefacts.write(&folder)?;
    for line in artefacts.verdict() {
        say(&line);
    }
    say(&format!("dist: the artefacts are in {} ({:.0} s)", folder.display(), began.elapsed().as_secs_f64()));
    if options.check {
        check::check(&folder, &artefacts.image, &source)?;
    }
    Ok(())
}

/// Makes the artefacts as they are released, and tries them out.
pub(crate) fn release_check() -> Result<()> {
    run(&Options { check: true, ..Options::default() })
}

/// Everything that is released.
struct Artefacts {
    image: Image,
    /// By name, without the checksums.
    files: BTreeMap<String, Vec<u8>>,
    /// What is not there, and why.
    missing: Option<String>,
}

impl Artefacts {
    fn pack(program: &[u8], authorities: &Authorities, architecture: &str, source: &Source) -> Result<Self> {
        say("dist: packing the image");
        let image = image::pack(&Contents { program, ca_bundle: &authorities.bundle, architecture }, source)?;
        let mut files = BTreeMap::new();
        files.insert(format!("coder-k8s-{VERSION}-linux-{architecture}"), program.to_vec());
        files.insert(format!("coder-k8s-{VERSION}-image-linux-{architecture}.tar"), image.archive(source)?);
        for (name, text) in documents(&image, source)? {
            files.insert(name, text.into_bytes());
        }
        say("dist: listing what is in it");
        let described = Described {
            program: sha256(program),
            image: image.digest.trim_start_matches("sha256:"),
            ca_bundle: sha256(&authorities.bundle),
        };
        let graph = Graph::of_release(&program::host()?)?;
        let sbom = sbom::document(&graph, &sbom::toolchain()?, &described, source)?;
        files.insert(format!("coder-k8s-{VERSION}.spdx.json"), serde_json::to_vec_pretty(&sbom)?);
        let chart = root().join(CHART);
        let missing = if chart.join("Chart.yaml").is_file() {
            let chart::Chart { file, bytes } = chart::pack(&chart, source)?;
            files.insert(file, bytes);
            None
        } else {
            Some(format!("the chart: there is no {CHART}"))
        };
        Ok(Self { image, files, missing })
    }

    /// Replaces what is in a folder.
    fn write(&self, folder: &Path) -> Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(folder)?;
        self.image.write_folder(&folder.join(LAYOUT))?;
        for (name, content) in &self.files {
            let file = folder.join(name);
            fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
            if Executable::read(content).is_ok() {
                make_executable(&file)?;
            }
        }
        fs::write(folder.join(CHECKSUMS), self.checksums())?;
        Ok(())
    }

    /// As `sha256sum --check` reads them.
    fn checksums(&self) -> String {
        let lines = self.files.iter().map(|(name, content)| format!("{}  {name}\n", sha256(content)));
        lines.collect::<Vec<_>>().concat()
    }

    /// Size and digest of everything, for people.
    fn verdict(&self) -> Vec<String> {
        let files = self
            .files
            .iter()
            .map(|(name, content)| format!("{:>9}  {}  {name}", readable(content.len()), sha256(content)));
        let image =
            format!("image {}@{}: {} to pull", image::name(), self.image.digest, readable(self.image.size));
        let missing = self.missing.iter().map(|what| format!("not made: {what}"));
        files.chain([image]).chain(missing).collect()
    }
}

/// The files for `kubectl apply`.
fn documents(image: &Image, source: &Source) -> Result<[(String, String); 2]> {
    let about = format!("# coder-k8s {VERSION}, commit {}.\n", source.commit);
    let crds: Result<Vec<_>, _> = coder_k8s_api::crds().iter().map(serde_json::to_value).collect();
    let defaults = Install::default();
    // By tag for people, and by digest for the cluster: what runs is what was tested.
    let pinned = format!("{}@{}", defaults.image, image.digest);
    let install = manifests::objects(&Install { image: pinned, with_crds: true, ..defaults })?;
    Ok([
        ("coder-k8s-crds.yaml".to_owned(), format!("{about}{}", objects(Format::Yaml, &crds?)?)),
        ("coder-k8s-install.yaml".to_owned(), format!("{about}{}", objects(Format::Yaml, &install)?)),
    ])
}

fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

fn readable(bytes: usize) -> String {
    if bytes < 1024 * 1024 {
        format!("{} KiB", bytes.div_ceil(1024))
    } else {
        format!("{}.{} MiB", bytes >> 20, ((bytes % (1 << 20)) * 10) >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack() -> Artefacts {
        let authorities = Authorities { bundle: b"certificates".to_vec(), count: 1, origin: String::new() };
        Artefacts::pack(&elf::smallest(62, 1), &authorities, "amd64", &Source::example()).unwrap()
    }

    #[test]
    fn packing_twice_gives_the_same_checksums_of_everything() {
        let (first, second) = (pack(), pack());
        assert_eq!(first.checksums(), second.checksums());
        assert_eq!(first.image.digest, second.image.digest);
    }

    #[test]
    fn a_folder_has_every_artefact_and_the_checksums_match() {
        let (artefacts, folder) = (pack(), tempfile::tempdir().unwrap());
        let folder = folder.path().join("dist");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("left-over"), "of an earlier release").unwrap();
        artefacts.write(&folder).unwrap();
        let entries = fs::read_dir(&folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        // There may be no chart.
        names.retain(|name| Path::new(name).extension().is_none_or(|extension| extension != "tgz"));
        assert_eq!(
            names,
            [
                CHECKSUMS.to_owned(),
                format!("coder-k8s-{VERSION}-image-linux-amd64.tar"),
                format!("coder-k8s-{VERSION}-linux-amd64"),
                format!("coder-k8s-{VERSION}.spdx.json"),
                "coder-k8s-crds.yaml".to_owned(),
                "coder-k8s-install.yaml".to_owned(),
                LAYOUT.to_owned(),
            ]
        );
        let sums = fs::read_to_string(folder.join(CHECKSUMS)).unwrap();
        assert_eq!(sums.lines().count(), artefacts.files.len());
        for (sum, name) in sums.lines().map(|line| line.split_once("  ").unwrap()) {
            assert_eq!(sum, sha256(&fs::read(folder.join(name)).unwrap()), "{name}");
        }
        assert_eq!(artefacts.missing.is_none(), root().join(CHART).exists());
    }

    #[test]
    fn the_manifests_pull_exactly_the_image_that_was_packed() {
        let artefacts = pack();
        let text = |name: &str| String::from_utf8(artefacts.files[name].clone()).unwrap();
        let install = text("coder-k8s-install.yaml");
        let image = format!("{}:v{VERSION}@{}", image::name(), artefacts.image.digest);
        assert!(install.contains(&image), "{image} is missing");
        assert!(install.starts_with(&format!("# coder-k8s {VERSION}, commit 4f0c2a9")));
        for name in ["coder-k8s-crds.yaml", "coder-k8s-install.yaml"] {
            let crds = text(name).matches("kind: CustomResourceDefinition\n").count();
            assert_eq!(crds, coder_k8s_api::crds().len(), "{name}");
        }
    }

    #[test]
    fn sizes_are_readable() {
        for (bytes, shown) in [(1, "1 KiB"), (2048, "2 KiB"), (1 << 20, "1.0 MiB"), (31_981_568, "30.5 MiB")]
        {
            assert_eq!(readable(bytes), shown);
        }
    }
}
