//! The commands that the pages tell to paste: each runs as it stands there, in a folder that has the files which it names.
//!
//! Every line of a block ```` ```sh ```` of README.md, CONTRIBUTING.md, docs/, recipes/ and of the pages in Chinese is run here,
//! or is listed below with the reason why not. `.ci/follow` runs those of the tutorials. Training runs only show what they would do (`--dry-run`); `.ci/run` runs the recipes to their
//! end. Lines that start cargo are compared with the packages, examples, tests and features that there are, and packages of
//! Python with those that messages name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use oarlock_cuda::libraries::Library;

use crate::common::{Site, run};

/// Beginnings of commands that are not run here, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("apt-get ", "installs packages"),
    ("git clone ", "needs the network"),
    ("scp ", "needs another machine"),
    ("mpirun ", "needs an MPI library; tests/mpi.rs"),
    ("srun ", "needs Slurm"),
    ("tensorboard ", "a program of others"),
    ("wandb ", "a program of others"),
    ("swanlab ", "a program of others"),
    ("python ", "needs PyTorch"),
    ("python3 packaging/wheel.py", "a release build; packaging/check.sh runs it"),
    ("pip install target/wheels/", "the wheel of that build; packaging/check.sh installs it"),
    ("bench/", "a measurement, which takes minutes"),
    ("recipes/two_machines.sh ", "trains the whole recipe over two network namespaces; tests/machines.rs"),
    (".ci/", "runs these tests"),
    ("OARLOCK_RDZV_TOKEN_FILE=run.token RANK=0 …", "what to fill in"),
    ("torchrun … ", "what to fill in"),
    ("cargo run --release -- tokenizer train ", "writes into the repository; tests/recipes.rs"),
    (
        "oarlock train train.yaml output_dir=out resume_from_checkpoint=",
        "needs a checkpoint of DeepSpeed; tests/import.rs",
    ),
    ("oarlock plan ", "measures the machine for some seconds; tests/plan.rs"),
    ("oarlock gpu-check", "needs a GPU; tests/gpu_check.rs"),
    ("oarlock gpu-compile", "needs NVRTC; tests/gpu_compile.rs"),
    ("OARLOCK_CUDA_LIBRARIES=$PWD/fakes ", "compiles the emulator; tests/gpu.rs"),
    ("oarlock generate --model out/pretrain --device cuda", "needs a GPU; tests/gpu.rs"),
    ("oarlock serve ", "serves until a signal; tests/serve.rs"),
    ("curl http://localhost:8000/", "asks that server; tests/serve.rs"),
    ("oarlock eval ", "needs the files of a benchmark; tests/eval.rs"),
    ("oarlock gather-checkpoint ", "needs the parts of two machines; tests/machines.rs"),
    ("oarlock merge-weights whole/", "needs the parts of two machines; tests/machines.rs"),
    ("oarlock import-checkpoint ", "needs a checkpoint of DeepSpeed; tests/import.rs"),
    ("cmp out/first", "needs two complete runs; tests/cli.rs"),
    ("RANK=0 WORLD_SIZE=4 ", "waits for ranks of other machines; tests/gloo.rs"),
    ("torchrun --nproc_per_node=2 --no-python oarlock", "torch's own torchrun; tests/launched.rs"),
    ("accelerate config", "asks at the terminal; tests/accelerate_commands.rs"),
    ("oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/", "examples; tests/examples.rs"),
    (
        "cargo run --release -- torchrun --nproc-per-node 2 --no-python target/release/",
        "tests/pretrain_loop.rs",
    ),
    ("GLOO_SOURCE=$PWD/gloo ", "needs the sources of Gloo"),
    ("--latency ", "the answer of the command above it"),
    (
        "deepspeed --num_gpus 8 src/train.py --deepspeed ds_config.json model_name_or_path=…",
        "what to fill in",
    ),
    ("oarlock torchrun --nproc-per-node 2 train.py --lr", "a Python program of the reader's"),
    ("oarlock torchrun --nproc-per-node 2 -m package.module", "a Python module of the reader's"),
];

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The commands of a page: the lines of its shell blocks without comments, continued lines joined.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = false;
    let text = page.replace("\\\n", " ");
    for line in text.lines() {
        match line.trim() {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => {
                let line =
                    line.split(" # ").next().unwrap_or_default().split("  #").next().unwrap_or_default();
                if !line.is_empty() && !line.starts_with('#') {
                    commands.push(line.split_whitespace().collect::<Vec<_>>().join(" "));
                }
            }
            _ => {}
        }
    }
    commands
}

/// All pages with their commands.
fn pages() -> Vec<(String, Vec<String>)> {
    let root = root();
    let names = ["README.md", "README_zh.md", "CONTRIBUTING.md", "recipes/README.md"];
    let mut paths: Vec<PathBuf> = names.iter().map(|name| root.join(name)).collect();
    for folder in ["docs", "docs/zh"] {
        paths.extend(fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, commands(&fs::read_to_string(&path).unwrap()))
    };
    paths.into_iter().map(read).collect()
}

/// A folder with everything that the commands name: recipes, the results of training runs, files of other programs.
fn site() -> Site {
    let site = Site::new();
    symlink(root().join("recipes"), site.path("recipes")).unwrap();
    for folder in ["bin", "user", "examples/accelerate", "examples/extras/fsdp_qlora"] {
        fs::create_dir_all(site.path(folder)).unwrap();
    }
    for name in oarlock_cli::front::ALL.iter().flat_map(|front| front.names).copied().chain(["oarlock"]) {
        let link = site.path("bin").join(name);
        symlink(env!("CARGO_BIN_EXE_oarlock"), link).unwrap();
    }
    let config = String::from_utf8(site.read("train.yaml")).unwrap().replace("num_processes: 2\n", "");
    for file in
        ["train.yaml", "FILE.yaml", "pretrain.yaml", "examples/extras/fsdp_qlora/llama3_lora_sft.yaml"]
    {
        site.write(file, &format!("{config}output_dir: out\n"));
    }
    let launch =
        "compute_environment: LOCAL_MACHINE\nuse_cpu: true\nnum_processes: 2\ndistributed_type: MULTI_CPU\n";
    for file in ["accelerate_config.yaml", "examples/accelerate/fsdp_config.yaml"] {
        site.write(file, launch);
    }
    site.write(
        "deepspeed_config.yaml",
        &format!("{}deepspeed_config:\n  zero_stage: 2\n", launch.replace("MULTI_CPU", "DEEPSPEED")),
    );
    let machine =
        "num_machines: 2\nmachine_rank: 0\nmain_process_ip: 192.168.0.1\nmain_process_port: 29500\n";
    site.write("machine_0.yaml", &format!("{launch}{machine}"));
    site.write("ds_config.json", "{\"zero_optimization\": {\"stage\": 2}}\n");
    site.write("hostfile", "hostname1 slots=2\nhostname2 slots=2\n");
    fs::create_dir(site.path("dataset")).unwrap();
    fs::copy(site.path("text.jsonl"), site.path("dataset/pretrain_hq.jsonl")).unwrap();
    for file in ["script.py", "your_program.py", "my-program"] {
        site.write(file, "");
    }
    // The results of the recipes, each after one step.
    let step = "max_steps=1 num_processes=1 per_device_train_batch_size=1 eval_strategy=no";
    for training in [
        "recipes/pretrain.yaml",
        "recipes/sft.yaml",
        "recipes/lora.yaml",
        "recipes/lora.yaml pissa_init=true pissa_convert=true output_dir=out/pissa",
        "recipes/lora.yaml finetuning_type=oft output_dir=out/oft",
        "recipes/lora.yaml quantization_bit=4 output_dir=out/qlora",
        "recipes/dpo.yaml",
        "train.yaml output_dir=output_dir save_strategy=steps save_steps=1",
    ] {
        let command = format!("exec \"$0\" train {step} {training}");
        let said = run(site.shell(&command));
        assert_eq!(said.code, Some(0), "{training}: {said:?}");
    }
    site
}

/// The command as it is run here: a training run only shows what it would do.
fn shown_only(command: &str) -> String {
    let command = command.replace("cargo run --release --", "oarlock");
    let words: Vec<&str> = command.split(' ').collect();
    let n_env = words.iter().take_while(|word| word.contains('=')).count();
    let rest = &words[n_env..];
    let rest = if rest.first() == Some(&"oarlock") { &rest[1..] } else { rest };
    match rest {
        ["train", ..] | ["llamafactory-cli", "train", ..] => format!("{command} --dry-run"),
        ["accelerate", "launch", ..] => command.replacen(" launch ", " launch --dry-run ", 1),
        ["torchrun" | "deepspeed", ..] => command.replacen(rest[0], &format!("{} --dry-run", rest[0]), 1),
        _ => command,
    }
}

#[test]
#[ignore = "heavy"]
fn every_command_runs_as_it_stands_on_its_page() {
    let site = site();
    let path = format!("{}:{}", site.path("bin").display(), std::env::var("PATH").unwrap());
    let mut wrong = Vec::new();
    let mut listed = vec![false; NOT_RUN.len()];
    for (page, commands) in pages() {
        // Several pages begin with a new token.
        let _ = fs::remove_file(site.path("run.token"));
        for command in commands {
            if let Some(at) = NOT_RUN.iter().position(|(start, _)| command.starts_with(start)) {
                listed[at] = true;
                continue;
            }
            if let Some(packages) = command.strip_prefix("pip install ") {
                let unknown = packages.split(' ').find(|package| !is_told_by_messages(package));
                wrong.extend(unknown.map(|package| format!("{page}: {command}: no message names {package}")));
                continue;
            }
            if command.starts_with("cargo ") && !command.starts_with("cargo run --release -- ") {
                wrong.extend(not_there(&command).map(|what| format!("{page}: {command}: {what}")));
                continue;
            }
            let mut shell = site.shell(&format!("exec 2>&1; {}", shown_only(&command)));
            shell.env("PATH", &path).env("HOME", site.path("user")).env("DS_ACCELERATOR", "cpu");
            let said = run(shell);
            if said.code != Some(0) {
                let lines: Vec<&str> = said.stdout.lines().collect();
                let end = lines[lines.len().saturating_sub(12)..].join("\n");
                wrong.push(format!("{page}: {command}\n{end}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} commands:\n{}", wrong.len(), wrong.join("\n"));
    let idle: Vec<&str> =
        NOT_RUN.iter().zip(&listed).filter(|(_, listed)| !**listed).map(|((start, _), _)| *start).collect();
    assert!(idle.is_empty(), "no page has these commands any more: {idle:?}");
}

/// Whether it is a package that messages tell to install. Nothing is installed here: these are gigabytes, for the Python of the
/// whole machine.
fn is_told_by_messages(package: &str) -> bool {
    let libraries = [Library::Nvrtc, Library::CublasLt, Library::Nccl, Library::Cudnn];
    libraries.iter().any(|library| library.command(None) == format!("pip install {package}"))
}

/// What a command of cargo names and the workspace does not have.
fn not_there(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split(' ').collect();
    let after =
        |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1).copied());
    let package = after("-p").unwrap_or("oarlock-cli");
    let folder = root().join("crates").join(package.strip_prefix("oarlock-").unwrap_or(package));
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    let has = |file: String| folder.join(file).is_file();
    let missing = [
        (!manifest.contains(&format!("name = \"{package}\""))).then(|| format!("no package {package}")),
        after("--example")
            .filter(|name| !has(format!("examples/{name}.rs")))
            .map(|name| format!("no example {name}")),
        after("--test").filter(|name| !has(format!("tests/{name}.rs"))).map(|name| format!("no test {name}")),
        after("--features")
            .filter(|name| !manifest.contains(&format!("\n{name} = [")))
            .map(|name| format!("no feature {name}")),
    ];
    missing.into_iter().flatten().next()
}

/// A line of progress of the first recipe is of one run, whichever page shows it.
#[test]
fn pages_quote_the_run_that_the_readme_shows() {
    let of = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.starts_with("step ") && line.contains("/672 "))
            .map(str::to_owned)
            .collect()
    };
    let readme = of(&fs::read_to_string(root().join("README.md")).unwrap());
    let chinese = of(&fs::read_to_string(root().join("README_zh.md")).unwrap());
    assert_eq!(chinese, readme);
    let mut quoted = 0;
    for entry in fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()) {
        let lines = if entry.is_file() { of(&fs::read_to_string(&entry).unwrap()) } else { Vec::new() };
        for line in lines {
            assert!(readme.contains(&line), "{}: {line}", entry.display());
            quoted += 1;
        }
    }
    assert!(quoted > 0 && !readme.is_empty(), "no page quotes the run of README.md");
}
