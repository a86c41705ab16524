//! Machines whose folders and files are their own: what each writes, and what must be the same on all.

use super::*;

/// Every machine has a folder of its own under the same name: it holds the whole model and its part of the checkpoint, from which
/// the run goes on; the parts are joined to the whole.
#[test]
fn machines_without_a_common_folder_write_their_parts() {
    if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
        return;
    }
    let site = site();
    let words = "model_name_or_path=../model dataset=../text.jsonl output_dir=out deepspeed=../ds_z3_config.json \
        save_strategy=steps save_steps=4 max_steps=6 overwrite_output_dir=false";
    let command = torchrun(2, "", words).replace("train.yaml", "../train.yaml");
    let said = ran(&site, 2, &["--folders"], &command);
    let message = "output_dir out is not one folder on all machines: those of ranks 0, 2 write their parts";
    assert!(said.stdout.contains(message), "{said:?}");
    let part = |machine: usize| format!("machine-{machine}/out/checkpoint-4");
    for (machine, own) in [(0, [0, 1]), (1, [2, 3])] {
        let has = |rank: usize| {
            site.path(&part(machine)).join(format!("state/rank-{rank:05}-of-00004.safetensors")).exists()
        };
        assert_eq!((0..4).filter(|rank| has(*rank)).collect::<Vec<_>>(), own);
        assert!(site.path(&format!("machine-{machine}/out/model.safetensors")).exists());
    }
    let model = |machine: usize| site.read(&format!("machine-{machine}/out/model.safetensors"));
    let whole = model(0);
    assert!(model(1) == whole);
    // On as if nothing had been between, the checkpoint of the last step included.
    for machine in 0..2 {
        std::fs::remove_dir_all(site.path(&format!("machine-{machine}/out/checkpoint-6"))).unwrap();
    }
    let said = ran(&site, 2, &["--folders"], &command);
    assert!(said.stdout.contains("Resuming training from out/checkpoint-4"), "{said:?}");
    assert!(model(0) == whole && model(1) == whole);
    let gather = format!("\"$0\" gather-checkpoint {} {} --out checkpoint-4", part(0), part(1));
    let said = run(site.shell(&gather));
    assert!(said.stdout.starts_with("joined 2 folders into checkpoint-4: step 4, "), "{said:?}");
    let merged = run(site.shell("\"$0\" merge-weights checkpoint-4 merged"));
    assert_eq!(merged.code, Some(0), "{merged:?}");
    assert!(site.path("merged/model.safetensors").exists());
}

/// Files that are not the same on all machines, and other builds, are named before the first step.
#[test]
#[ignore = "heavy"]
fn machines_with_other_files_or_builds_do_not_train_together() {
    if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
        return;
    }
    let site = site();
    let train = torchrun(2, "", "model_name_or_path=model dataset=text.jsonl output_dir=out")
        .replace("train.yaml", "../train.yaml");
    for (change, expected) in [
        (
            "printf '\\1' | dd of=model/model.safetensors bs=1 conv=notrunc seek=$(($(stat -c %s model/model.safetensors) - 2)) 2>/dev/null",
            "model/model.safetensors differs between rank 0 on worker-0 and rank 2 on worker-1",
        ),
        (
            "sed -i 's/\"vocab\"/ \"vocab\"/' model/tokenizer.json",
            "model/tokenizer.json differs between rank 0 on worker-0 and rank 2 on worker-1",
        ),
        (
            "echo '{}' > model/generation_config.json",
            "model/generation_config.json differs between rank 0 on worker-0 and rank 2 on worker-1",
        ),
        (
            "head -n 20 ../text.jsonl > text.jsonl",
            "text.jsonl differs between rank 0 on worker-0 and rank 2 on worker-1",
        ),
    ] {
        let script = format!(
            "rm -rf model out; cp -r ../model model; cp ../text.jsonl text.jsonl
             if [ $MACHINE = 1 ]; then {change}; fi; {train}"
        );
        let said = run(on_machines(&site, 2, &["--folders", "--keep-going"], &script));
        assert!(said.code != Some(0) && said.stderr.contains(expected), "{change}: {said:?}");
        assert!(!site.path("machine-0/out/trainer_log.jsonl").exists(), "{change}");
    }
    let script = format!(
        "if [ $MACHINE = 1 ]; then cp \"$0\" oarlock; printf x >> oarlock; ln -sf oarlock torchrun; PATH=$PWD:$PATH; fi
         rm -rf out; export OARLOCK_JOIN_TIMEOUT=5; {train}"
    );
    let said = run(on_machines(&site, 2, &["--folders", "--keep-going"], &script));
    assert!(said.code != Some(0) && said.stderr.contains("the build of this program is `0.1.0+"), "{said:?}");
}

/// Without a shared filesystem all nodes go on from the newest checkpoint that they have together, or from none.
#[test]
fn machines_of_which_one_lacks_checkpoints_agree_on_an_older_one() {
    if !oarlock_must::have_gloo_machines(oarlock_comm::gloo_obstacle()) {
        return;
    }
    let site = site();
    let words = "model_name_or_path=../model dataset=../text.jsonl output_dir=out deepspeed=../ds_z1_config.json \
        save_strategy=steps save_steps=2 max_steps=6";
    let command = torchrun(2, "", words).replace("train.yaml", "../train.yaml");
    ran(&site, 2, &["--folders"], &command);
    let model = site.read("machine-0/out/model.safetensors");
    for newer in ["checkpoint-6", "checkpoint-4"] {
        let _ = std::fs::remove_dir_all(site.path(&format!("machine-1/out/{newer}")));
    }
    let said = ran(&site, 2, &["--folders"], &command);
    assert!(said.stderr.contains("out/checkpoint-4 is left aside"), "{said:?}");
    assert!(said.stdout.contains("Resuming training from out/checkpoint-2"), "{said:?}");
    assert!(site.read("machine-1/out/model.safetensors") == model);
    // Machine 0 is a new one.
    std::fs::remove_dir_all(site.path("machine-0/out")).unwrap();
    let said = run(on_machines(&site, 2, &["--folders", "--keep-going"], &command));
    assert!(said.code != Some(0), "{said:?}");
    assert!(said.stderr.contains("rank 2 on worker-1 has checkpoint-2, checkpoint-4"), "{said:?}");
    assert!(said.stderr.contains("rank 0 on worker-0 has no checkpoint at all"), "{said:?}");
}
