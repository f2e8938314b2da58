//! Objects in little memory: their JSON, compressed against the JSON of another object of the same kind.
//!
//! Objects of one kind that one operator writes differ in names, uids and times, and in little else. So one of them serves as
//! the model of the others, and each of these takes a few hundred bytes. An object that resembles the model too little
//! becomes the next model; a model is dropped with the last object that was packed against it. In the worst case, of objects
//! that have little in common, they take as much as their JSON, and as much again for models.

use std::sync::Arc;

use lz4_flex::block;
use parking_lot::Mutex;

/// The part of an object's size below which it counts as packed well.
const WORTHWHILE: f64 = 0.3;
/// LZ4 looks back no further.
const MAX_MODEL_BYTES: usize = 64 * 1024;

/// Packs the objects of one kind.
#[derive(Debug, Default)]
pub(super) struct Packer {
    model: Mutex<Option<Arc<Box<[u8]>>>>,
}

/// An object of a compact cache. Clones share its bytes.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// None: the bytes are not compressed.
    model: Option<Arc<Box<[u8]>>>,
    bytes: Arc<[u8]>,
    /// Size of the JSON in bytes.
    size: usize,
}

impl Packer {
    pub(super) fn pack(&self, json: Vec<u8>) -> Packed {
        let size = json.len();
        let mut model = self.model.lock();
        if let Some(model) = &*model {
            let bytes = block::compress_with_dict(&json, model);
            #[expect(clippy::cast_precision_loss, reason = "an object has at most a few MiB")]
            let share = bytes.len() as f64 / size.max(1) as f64;
            if share <= WORTHWHILE {
                return Packed { model: Some(model.clone()), bytes: bytes.into(), size };
            }
        }
        if size <= MAX_MODEL_BYTES {
            *model = Some(Arc::new(json.clone().into()));
        }
        Packed { model: None, bytes: json.into(), size }
    }
}

impl Packed {
    /// The JSON. None: the bytes were not made by [`Packer::pack`], which cannot happen.
    pub(super) fn unpack(&self) -> Option<Vec<u8>> {
        match &self.model {
            Some(model) => block::decompress_with_dict(&self.bytes, self.size, model).ok(),
            None => Some(self.bytes.to_vec()),
        }
    }

    /// Bytes that are kept for this object alone.
    pub(super) fn kept(&self) -> usize {
        self.bytes.len()
    }

    /// The object against which it was compressed.
    pub(super) fn model(&self) -> Option<&Arc<Box<[u8]>>> {
        self.model.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(number: usize) -> Vec<u8> {
        let name = format!("plane-{number:05}");
        let uid = format!("{number:08x}-7c1d-4e0b-9b5f-{:012x}", number * 7919);
        let labels = json!({"app.kubernetes.io/name": "coder", "app.kubernetes.io/instance": name,
            "app.kubernetes.io/managed-by": "coder-k8s"});
        let env: Vec<_> = (0..20).map(|n| json!({"name": format!("CODER_{n}"), "value": "true"})).collect();
        json!({"metadata": {"name": name, "namespace": "bench", "uid": uid, "labels": labels},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "coder", "image": "example.test/coder:v2.36.1", "env": env}]}}}})
        .to_string()
        .into_bytes()
    }

    #[test]
    fn siblings_take_a_fraction_of_their_json_and_come_back_whole() {
        let packer = Packer::default();
        let all: Vec<_> = (0..100).map(|number| packer.pack(deployment(number))).collect();
        for (number, packed) in all.iter().enumerate() {
            assert_eq!(packed.unpack(), Some(deployment(number)));
        }
        let (kept, size) =
            (all.iter().map(Packed::kept).sum::<usize>(), all.iter().map(|one| one.size).sum::<usize>());
        assert!(kept * 6 < size, "{kept} of {size} bytes");
    }

    #[test]
    fn what_has_nothing_in_common_takes_as_much_as_its_json() {
        let packer = Packer::default();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50 {
            let bytes: Vec<u8> = (0..random.usize(0..3000)).map(|_| random.u8(..)).collect();
            let packed = packer.pack(bytes.clone());
            assert!(packed.kept() <= bytes.len());
            assert_eq!(packed.unpack(), Some(bytes));
        }
    }

    #[test]
    fn a_huge_object_is_no_model() {
        let packer = Packer::default();
        let huge = vec![b'x'; MAX_MODEL_BYTES + 1];
        assert_eq!(packer.pack(huge.clone()).unpack(), Some(huge));
        assert!(packer.model.lock().is_none());
    }
}
