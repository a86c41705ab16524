#!/usr/bin/env python3
"""Prints the list of the parts of the program (SBOM): each crate that is linked into it, with its version, its license, its
checksum and what it depends on, as CycloneDX 1.5 in JSON.

    python3 packaging/sbom.py >oarlock.cdx.json

It needs cargo and the sources of the crates (`cargo fetch`). The same commit gives the same bytes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Dict, List, Set

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "oarlock-cli"
TARGET = "x86_64-unknown-linux-gnu"
Json = Dict[str, Any]


def main() -> int:
    """Prints the list."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8")
    data: Json = json.loads(said.stdout)
    packages: Dict[str, Json] = {package["id"]: package for package in data["packages"]}
    nodes: Dict[str, Json] = {node["id"]: node for node in data["resolve"]["nodes"]}
    (program,) = [package for package in packages.values() if package["name"] == PROGRAM]
    linked = closure(program["id"], nodes)
    sums = checksums((ROOT / "Cargo.lock").read_text())
    others = sorted(linked - {program["id"]}, key=lambda one: (packages[one]["name"], packages[one]["version"]))
    document: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(program, sums), "type": "application"}},
        "components": [component(packages[one], sums) for one in others],
        "dependencies": [
            {"ref": reference(packages[one]), "dependsOn": sorted(reference(packages[to]) for to in runtime(nodes[one]))}
            for one in [program["id"], *others]
        ],
    }
    # The number of a document is that of its content.
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True)).urn
    json.dump(document, sys.stdout, indent=1)
    print()
    return 0


def runtime(node: Json) -> List[str]:
    """The crates that a crate is linked with: neither those of its tests nor those of its build."""
    is_linked = [any(kind["kind"] is None for kind in one["dep_kinds"]) for one in node["deps"]]
    return [one["pkg"] for one, linked in zip(node["deps"], is_linked) if linked]


def closure(program: str, nodes: Dict[str, Json]) -> Set[str]:
    """All crates that the program is linked with, and itself."""
    seen: Set[str] = set()
    todo = [program]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo.extend(runtime(nodes[one]))
    return seen


def checksums(lock: str) -> Dict[str, str]:
    """The checksums of Cargo.lock, by name and version."""
    found = re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]{64})"', lock)
    return {f"{name}@{version}": checksum for name, version, checksum in found}


def reference(package: Json) -> str:
    """The address of a crate among all packages of the world."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: Json, sums: Dict[str, str]) -> Json:
    """A crate as a part."""
    out: Json = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package.get("description"):
        out["description"] = " ".join(package["description"].split())
    if package.get("license"):
        # Some crates still write the older form `MIT/Apache-2.0`.
        out["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = sums.get(f"{package['name']}@{package['version']}")
    if checksum:
        out["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("repository"):
        out["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return out


if __name__ == "__main__":
    sys.exit(main())
