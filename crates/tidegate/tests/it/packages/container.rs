//! The container image and the Kubernetes manifests. No image is built: that needs a registry.

use std::process::Command;

use super::{of_repository, run};
use crate::peers::python_program;
use crate::program::command;

#[test]
fn the_recipe_of_the_image_has_no_faults() {
    run(python_program("hadolint").arg(of_repository("Dockerfile")));
}

#[test]
fn configurations_that_packages_bring_are_right() {
    for path in [
        "packaging/container/tidegate.toml",
        "packaging/kubernetes/base/tidegate.toml",
        "packaging/kubernetes/overlays/redis/tidegate.toml",
    ] {
        // Snapshots go to a folder that only the image has.
        let text = std::fs::read_to_string(of_repository(path)).expect("a file");
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path().to_str().expect("a path in UTF-8");
        let file = folder.path().join("tidegate.toml");
        std::fs::write(&file, text.replace("/var/lib/tidegate", here)).expect("a file");
        let mut check = command(["config", "check"]);
        run(check.arg(file).env("REDIS_PASSWORD", "a password"));
        // Where the probes and the health check of the image ask.
        let admin = "[admin]\nlisten = \"127.0.0.1:8090\"";
        assert!(text.contains(admin), "{path}: admin is on loopback");
    }
}

/// Whether all probes and the health check of the image ask administration.
#[test]
fn health_is_asked_of_administration() {
    let ask = r#"["/usr/bin/tidegate", "healthcheck", "--server", "http://127.0.0.1:8090"]"#;
    for (path, probe, probes) in [
        ("Dockerfile", "HEALTHCHECK", 1),
        ("packaging/kubernetes/base/deployment.yaml", "Probe:", 3),
    ] {
        let text = std::fs::read_to_string(of_repository(path)).expect("a file");
        assert_eq!(text.matches(ask).count(), probes, "{path}");
        assert_eq!(text.matches(probe).count(), probes, "{path}");
    }
}

/// Whether the monitor selects the service and asks one of its ports.
const SELECTS: &str = "
import sys, yaml
monitor = yaml.safe_load(open(sys.argv[1]))
service = yaml.safe_load(open(sys.argv[2]))
assert (monitor['apiVersion'], monitor['kind']) == ('monitoring.coreos.com/v1', 'ServiceMonitor')
wanted = monitor['spec']['selector']['matchLabels'].items()
assert wanted and wanted <= service['metadata']['labels'].items(), wanted
ports = {port['name'] for port in service['spec']['ports']}
asked = monitor['spec']['endpoints']
assert asked and all(end['port'] in ports and end['path'] == '/metrics' for end in asked), asked
";

#[test]
fn the_monitor_finds_the_service() {
    let folder = of_repository("packaging/kubernetes");
    let mut python = python_program("python");
    python.args(["-c", SELECTS]).arg(folder.join("servicemonitor.yaml"));
    run(python.arg(folder.join("base/service.yaml")));
}

#[test]
fn manifests_are_what_kubernetes_takes() {
    for (path, replicas) in [("base", 1), ("overlays/redis", 3)] {
        let path = of_repository("packaging/kubernetes").join(path);
        let manifests = Command::new("kubectl").arg("kustomize").arg(path).output();
        let manifests = manifests.expect("kubectl is there; `make setup-test` installs it");
        let told = String::from_utf8_lossy(&manifests.stderr);
        assert!(manifests.status.success(), "{told}");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("manifests.yaml");
        std::fs::write(&file, &manifests.stdout).expect("a file");
        let mut validate = python_program("kubernetes-validate");
        let printed = run(validate.args(["--strict", "--kubernetes-version", "1.31"]).arg(file));
        for kind in ["configmap", "deployment", "poddisruptionbudget", "service"] {
            assert!(printed.contains(&format!("{kind}/tidegate")), "{kind} in {printed}");
        }
        let text = String::from_utf8(manifests.stdout).expect("text");
        assert!(text.contains(&format!("replicas: {replicas}\n")), "{text}");
    }
}
