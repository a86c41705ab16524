//! Accelerate's configuration, written from code and by the command.

use std::process::Command;

use oarlock::distributed;

#[test]
fn a_basic_configuration_is_that_of_the_command_and_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, commands) = (folder.path().join("new/ours.yaml"), folder.path().join("commands.yaml"));
    assert_eq!(distributed::write_basic_config("BF16", Some(&ours)).unwrap(), Some(ours.clone()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_oarlock"));
    command
        .args(["accelerate", "config", "default", "--mixed_precision", "bf16", "--config_file"])
        .arg(&commands);
    assert!(command.output().unwrap().status.success());
    let text = std::fs::read_to_string(&ours).unwrap();
    assert_eq!(text, std::fs::read_to_string(&commands).unwrap());
    assert_eq!(distributed::write_basic_config("no", Some(&ours)).unwrap(), None);
    assert_eq!(std::fs::read_to_string(&ours).unwrap(), text);
    let wrong = distributed::write_basic_config("fp4", Some(&folder.path().join("x.yaml"))).unwrap_err();
    assert!(wrong.to_string().contains("\"fp4\""));
}
