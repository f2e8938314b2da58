use super::*;
use crate::dist::archive::{Listed, gunzip, listed};

fn contents(program: &[u8]) -> Contents<'_> {
    Contents { program, ca_bundle: b"certificates", architecture: "amd64" }
}

fn image(program: &[u8]) -> Image {
    pack(&contents(program), &Source::example()).unwrap()
}

impl Image {
    fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.files[path]).unwrap()
    }

    /// What a descriptor points to, once its size and digest were found to be right.
    fn blob(&self, descriptor: &Value) -> &[u8] {
        let (algorithm, hash) = descriptor["digest"].as_str().unwrap().split_once(':').unwrap();
        let blob = &self.files[&format!("blobs/{algorithm}/{hash}")];
        assert_eq!(descriptor["size"], blob.len());
        assert_eq!((algorithm, hash), ("sha256", sha256(blob).as_str()));
        blob
    }

    fn json_blob(&self, descriptor: &Value) -> Value {
        serde_json::from_slice(self.blob(descriptor)).unwrap()
    }

    fn manifest(&self) -> Value {
        self.json_blob(&self.json("index.json")["manifests"][0])
    }

    fn config(&self) -> Value {
        self.json_blob(&self.manifest()["config"])
    }
}

#[test]
fn packing_one_program_twice_gives_one_digest_and_another_program_another() {
    let (first, second) = (image(b"program"), image(b"program"));
    assert_eq!(first.digest, second.digest);
    let archive = |image: &Image| sha256(&image.archive(&Source::example()).unwrap());
    assert_eq!(archive(&first), archive(&second));
    assert_ne!(first.digest, image(b"another").digest);
    let later = Source { epoch: Source::example().epoch + 1, ..Source::example() };
    assert_ne!(first.digest, pack(&contents(b"program"), &later).unwrap().digest);
}

#[test]
fn the_layout_has_what_the_specification_requires() {
    let image = image(b"program");
    assert_eq!(image.json("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}));
    let index = image.json("index.json");
    assert_eq!((&index["schemaVersion"], index["manifests"].as_array().unwrap().len()), (&json!(2), 1));
    let descriptor = &index["manifests"][0];
    assert_eq!(descriptor["digest"], image.digest);
    assert_eq!(descriptor["mediaType"], MANIFEST);
    assert_eq!(descriptor["platform"], json!({"architecture": "amd64", "os": "linux"}));
    let names = &descriptor["annotations"];
    assert_eq!(names["org.opencontainers.image.ref.name"], tag());
    assert_eq!(names["io.containerd.image.name"], Install::default().image, "what the manifests pull");

    let manifest = image.manifest();
    assert_eq!((&manifest["schemaVersion"], &manifest["mediaType"]), (&json!(2), &json!(MANIFEST)));
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.oci.image.config.v1+json");
    let layers = manifest["layers"].as_array().unwrap();
    let config = image.config();
    let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
    assert_eq!((layers.len(), diff_ids.len()), (2, 2));
    assert_eq!(config["history"].as_array().unwrap().len(), 2);
    assert_eq!(config["rootfs"]["type"], "layers");
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
        assert_eq!(*diff_id, format!("sha256:{}", sha256(&gunzip(image.blob(layer)))));
    }
    let pulled = layers.iter().chain([&manifest["config"]]).map(|blob| blob["size"].as_u64().unwrap());
    assert_eq!(pulled.sum::<u64>(), image.size as u64);
    assert_eq!(image.files.len(), 6, "nothing that no descriptor points to: {:?}", image.files.keys());
}

#[test]
fn nothing_is_in_it_but_the_program_the_bundle_and_the_user() {
    let image = image(b"program");
    let layers = image.manifest()["layers"].as_array().unwrap().clone();
    let all: Vec<_> = layers.iter().flat_map(|layer| listed(&gunzip(image.blob(layer)))).collect();
    let shown: Vec<_> = all.iter().map(|entry| (entry.path.as_str(), entry.mode)).collect();
    assert_eq!(
        shown,
        [
            ("etc/", 0o755),
            ("etc/passwd", 0o644),
            ("etc/ssl/", 0o755),
            ("etc/ssl/certs/", 0o755),
            ("etc/ssl/certs/ca-certificates.crt", 0o644),
            ("coder-k8s", 0o755),
        ]
    );
    for Listed { path, owner, time, content, .. } in &all {
        assert_eq!((*owner, *time), ((0, 0), Source::example().epoch), "{path}");
        let expected: &[u8] = match path.as_str() {
            "coder-k8s" => b"program",
            "etc/ssl/certs/ca-certificates.crt" => b"certificates",
            "etc/passwd" => b"coder-k8s:x:65532:65532:coder-k8s:/:/sbin/nologin\n",
            _ => b"",
        };
        assert_eq!(content, expected, "{path}");
    }
}

#[test]
fn it_runs_as_nobody_special_and_says_what_it_is() {
    let image = image(b"program");
    let config = image.config();
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], json!(["/coder-k8s"]));
    assert_eq!(config["config"].get("Cmd"), None, "without arguments it is the controller");
    assert_eq!(config["created"], "2023-11-14T22:13:20Z");
    let labels = &config["config"]["Labels"];
    for (key, value) in [
        ("version", VERSION),
        ("revision", &Source::example().commit),
        ("licenses", "Apache-2.0"),
        ("created", "2023-11-14T22:13:20Z"),
        ("title", "coder-k8s"),
    ] {
        assert_eq!(labels[format!("org.opencontainers.image.{key}")], value);
    }
    assert_eq!(image.manifest()["annotations"], *labels);
}

#[test]
fn the_folder_and_the_archive_hold_the_same() {
    let (image, folder) = (image(b"program"), tempfile::tempdir().unwrap());
    image.write_folder(folder.path()).unwrap();
    let archived = listed(&image.archive(&Source::example()).unwrap());
    let files = archived.iter().filter(|entry| !entry.path.ends_with('/'));
    assert_eq!(files.clone().count(), image.files.len());
    for Listed { path, content, .. } in files {
        assert_eq!(&fs::read(folder.path().join(path)).unwrap(), content, "{path}");
    }
}

/// The instructions of the Containerfile that begin with a word, those that continue on the next line joined.
fn instructions(word: &str) -> Vec<String> {
    let text = fs::read_to_string(crate::run::root().join("Containerfile")).unwrap().replace("\\\n", " ");
    let of_word = text.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    of_word.map(|rest| rest.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_containerfile_makes_the_same_image() {
    assert_eq!(instructions("FROM").last().unwrap(), "scratch");
    assert_eq!(instructions("ENTRYPOINT"), [format!("[\"{ENTRYPOINT}\"]")]);
    assert_eq!(instructions("USER"), [format!("{USER}:{USER}")]);
    assert_eq!(instructions("EXPOSE"), [PORTS.map(|port| port.to_string()).join(" ")]);
    assert!(instructions("CMD").is_empty());
    let copied: Vec<_> =
        instructions("COPY").into_iter().filter(|line| line.starts_with("--from=")).collect();
    let targets: Vec<_> = copied.iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(targets, [PASSWD, CA_BUNDLE, ENTRYPOINT]);
    assert!(instructions("RUN").iter().any(|line| line.contains(passwd().trim_end())));
    let labels = instructions("LABEL").join(" ");
    for key in labels_of_any_build() {
        assert!(labels.contains(&format!("{key}=")), "{key} is missing");
    }
    assert!(labels.contains(&format!("org.opencontainers.image.version=\"{VERSION}\"")));
}

/// All but the time, which a container engine sets by itself.
fn labels_of_any_build() -> Vec<&'static str> {
    let all = labels(&Source::example()).into_keys();
    all.filter(|key| *key != "org.opencontainers.image.created").collect()
}
