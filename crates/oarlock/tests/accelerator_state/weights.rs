//! The weights alone: as tensors, and in files that others read.

use oarlock::checkpoint::MergeOptions;
use oarlock::model::merge_weights;
use oarlock::nn::BufferValues;
use oarlock::weights::{Differences, StateDictSource, Strict};
use oarlock::{DType, SaveModel, ShardSize, Tensor};
use safetensors::SafeTensors;

use super::{Loop, Net, WAYS, config, on_ranks};

#[test]
fn weights_are_whole_on_every_rank_and_in_files_that_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for (world, way) in [(1, WAYS[0]), (2, WAYS[1]), (2, WAYS[2]), (2, WAYS[3]), (4, WAYS[4])] {
        let dir = folder.path().join(format!("{world}-{way:?}"));
        let states = on_ranks(world, &config(way.0, way.1), |accelerator| {
            let training = Loop::new(accelerator).unwrap();
            let net = &training.nets[0];
            accelerator.save_model(net, dir.join("one"), &SaveModel::default()).unwrap();
            let small = SaveModel { max_shard_size: "1KB".parse().unwrap(), ..SaveModel::default() };
            accelerator.save_model(net, dir.join("many"), &small).unwrap();
            let halves = SaveModel { dtype: Some(DType::BF16), ..SaveModel::default() };
            accelerator.save_model(net, dir.join("halves"), &halves).unwrap();
            let pickle = SaveModel { safe_serialization: false, ..SaveModel::default() };
            let refused = accelerator.save_model(net, dir.join("pickle"), &pickle).unwrap_err();
            assert!(refused.to_string().contains("runs code when it is read"), "{refused}");
            // What was saved comes back, buffers and all.
            let again = Loop::new(accelerator).unwrap();
            let counted = again.nets[0].module().counted.values();
            again.nets[0].module().counted.set(vec![-1.0; 2]).unwrap();
            for saved in ["one", "many", "halves"] {
                accelerator.load_model(&again.nets[0], dir.join(saved)).unwrap();
                assert_eq!(again.nets[0].module().counted.values(), counted);
            }
            let mut state = accelerator.get_state_dict(net).unwrap();
            assert!(!state.contains_key("table"));
            assert_eq!(state.remove("ids").unwrap().to_vec::<i32>().unwrap(), [7, 8, 9]);
            state
                .into_iter()
                .map(|(name, t)| (name, t.sizes().to_vec(), t.to_vec::<f32>().unwrap()))
                .collect()
        });
        all.extend(states.into_iter().map(|state: Vec<_>| (dir.clone(), state)));
    }
    let (first_dir, first) = &all[0];
    let names: Vec<&str> = first.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["counted", "down.bias", "down.weight", "up.bias", "up.weight"]);
    assert!(first[2].2.iter().any(|&x| x != 0.0) && first[2].1 == [4, 150]);
    for (dir, state) in &all {
        assert_eq!(state, first, "{}", dir.display());
        let file = std::fs::read(dir.join("one/model.safetensors")).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.len(), 6);
        let ids: Vec<u8> = [7i32, 8, 9].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(
            (read.tensor("ids").unwrap().dtype(), read.tensor("ids").unwrap().data()),
            (safetensors::Dtype::I32, ids.as_slice())
        );
        for (name, sizes, values) in state {
            let tensor = read.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::F32, sizes.as_slice()));
            assert!(tensor.data().chunks(4).zip(values).all(|(bytes, x)| bytes == x.to_le_bytes()));
        }
        for file in ["halves/model.safetensors", "many/model.safetensors.index.json"] {
            let [this, other] = [dir, first_dir].map(|dir| std::fs::read(dir.join(file)).unwrap());
            assert!(this == other, "{file}");
        }
    }
    let text = std::fs::read_to_string(first_dir.join("many/model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(index["metadata"]["total_size"], 4 * (2 * 600 + 150 + 4 + 2 + 3));
    for (name, _, values) in first {
        let shard = first_dir.join("many").join(index["weight_map"][name].as_str().unwrap());
        let file = std::fs::read(shard).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.tensor(name).unwrap().data(), bytemuck::cast_slice::<f32, u8>(values));
    }
    let wrong = "ten gigabytes".parse::<ShardSize>().unwrap_err().to_string();
    assert!(wrong.starts_with("max_shard_size: \"ten gigabytes\" is not a size"), "{wrong}");
}

#[test]
fn weights_come_out_of_a_checkpoint_of_two_models() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, out) = (folder.path().join("state"), folder.path().join("out"));
    let of_ranks = on_ranks(2, &config(WAYS[4].0, WAYS[4].1), |accelerator| {
        let training = Loop::new(accelerator).unwrap();
        accelerator.save_state(Some(&dir)).unwrap();
        // In the order in which they were prepared.
        [1, 0].map(|net| {
            accelerator.get_state_dict(&training.nets[net]).unwrap()["up.weight"].to_vec::<f32>().unwrap()
        })
    });
    let of =
        |model| MergeOptions { tag: None, model, dtype: None, max_shard_bytes: u64::MAX, overwrite: false };
    for (model, width) in [(0, 9), (1, 150)] {
        let merged = merge_weights(&dir, &out, &of(Some(model))).unwrap();
        assert_eq!((merged.n_elems, merged.n_models), (4 * width + width + width * 4 + 4, 2));
        let file = std::fs::read(out.join("model.safetensors")).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        let of_model: &[f32] = &of_ranks[0][model];
        assert_eq!(read.tensor("up.weight").unwrap().data(), bytemuck::cast_slice::<f32, u8>(of_model));
    }
    let message = |model| merge_weights(&dir, &out, &of(model)).unwrap_err().to_string();
    let models = "0 (4 parameters, \"down.bias\" first), 1 (4 parameters, \"down.bias\" first)";
    let several = "it holds 2 models; say which one by its number (`oarlock merge-weights --model N`, `accelerate \
                   merge-weights CHECKPOINT/pytorch_model_fsdp_N`): ";
    assert!(message(None).ends_with(&format!("{several}{models}")), "{}", message(None));
    assert!(
        message(Some(2)).ends_with(&format!("it holds no model 2; it has {models}")),
        "{}",
        message(Some(2))
    );
}

#[test]
fn a_state_dict_goes_into_every_placement_and_names_what_differs() {
    for way in WAYS {
        on_ranks(2, &config(way.0, way.1), |accelerator| {
            let from = accelerator.prepare(Net::new(4, 150)).unwrap();
            let mut state = accelerator.get_state_dict(&from).unwrap();
            for (seed, tensor) in state.values_mut().filter(|tensor| tensor.dtype() == DType::F32).enumerate()
            {
                let values: Vec<f32> = (0..tensor.n_elems()).map(|i| (i + seed) as f32 / 7.0).collect();
                *tensor = Tensor::from_slice(&values, tensor.sizes(), accelerator.device()).unwrap();
            }
            let ids = Tensor::from_slice(&[4i32, 5, 6], [3], accelerator.device()).unwrap();
            state.insert("ids".to_owned(), ids);
            let values = |state: &std::collections::BTreeMap<String, Tensor>| -> Vec<(String, Vec<f64>)> {
                let values = |tensor: &Tensor| tensor.to_vec::<f64>().unwrap();
                state.iter().map(|(name, tensor)| (name.clone(), values(tensor))).collect()
            };
            // A prepared model, and one that is not.
            let net = accelerator.prepare(Net::new(4, 150)).unwrap();
            accelerator.load_state_dict(&net, &state).unwrap();
            assert_eq!(net.module().ids.values(), BufferValues::Ints(vec![4, 5, 6]));
            let main = accelerator.get_state_dict_on_main_process(&net).unwrap();
            assert_eq!(main.as_ref().map(values), accelerator.is_main_process().then(|| values(&state)));
            let bare = Net::new(4, 150);
            let (weights, _) = StateDictSource::of_module(&state, &bare, Strict::Yes).unwrap();
            weights.fill_buffers().unwrap();
            let bare = accelerator.prepare_with_weights(bare, Box::new(weights)).unwrap();
            assert_eq!(values(&accelerator.get_state_dict(&bare).unwrap()), values(&state));
            // Names that differ.
            let bias = state.remove("up.bias").unwrap();
            state.insert("up.scale".to_owned(), bias.clone());
            let message = accelerator.load_state_dict(&from, &state).unwrap_err().to_string();
            assert_eq!(
                message,
                "the state dict lacks weights that the model asks for: up.bias; it holds weights that the model does not \
                 ask for: up.scale"
            );
            let before = accelerator.get_state_dict(&from).unwrap()["up.bias"].to_vec::<f32>().unwrap();
            let differences = accelerator.load_state_dict_with(&from, &state, Strict::No).unwrap();
            let [missing, unexpected] = [vec!["up.bias".to_owned()], vec!["up.scale".to_owned()]];
            assert_eq!(differences, Differences { missing, unexpected, other_base: None });
            let after = accelerator.get_state_dict(&from).unwrap();
            assert_eq!(after["up.bias"].to_vec::<f32>().unwrap(), before);
            assert_eq!(
                after["up.weight"].to_vec::<f32>().unwrap(),
                state["up.weight"].to_vec::<f32>().unwrap()
            );
            // Another shape is an error in either case, and on all ranks.
            if accelerator.process_index() == 1 {
                state.insert("up.weight".to_owned(), bias);
            }
            let message =
                accelerator.load_state_dict_with(&from, &state, Strict::No).unwrap_err().to_string();
            let expected =
                ["another rank could not load it", "up.weight [150] (the model asks for [150, 4])"];
            assert!(message.contains(expected[accelerator.process_index()]), "{message}");
        });
    }
}
