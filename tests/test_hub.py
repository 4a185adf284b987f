"""The trial hub, and the values for a real one: what can be tested without starting either."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from traitlets.config.loader import PyFileConfigLoader

from deploy.hub import local
from dlsys import cli, work_folder
from dlsys_helpers.paths import ROOT

VALUES = yaml.safe_load((ROOT / "deploy/hub/values.yaml").read_text("utf-8"))
SECRET = "a-password-of-tests"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """jupyterhub_config.py as the hub reads it."""
    for name, value in local.environment(8000, tmp_path, SECRET).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "dlsys-warm")
    return PyFileConfigLoader(str(local.CONFIG)).load_config()


def spawner(name):
    return SimpleNamespace(user=SimpleNamespace(name=name))


def test_nothing_listens_beyond_this_machine(config):
    urls = (config.JupyterHub.bind_url, config.JupyterHub.hub_bind_url,
            config.ConfigurableHTTPProxy.api_url)
    assert urls == tuple(f"http://127.0.0.1:{port}" for port in (8000, 8001, 8002))


def test_every_learner_has_a_folder_of_their_own_for_work_and_progress(config, tmp_path):
    folders = [config.Spawner.environment["DLSYS_WORK"](spawner(name)) for name in ("ann", "bob")]
    assert folders == [str(tmp_path / "learners" / name / "my-work") for name in ("ann", "bob")]
    assert config.Spawner.notebook_dir.format(username="ann") == folders[0]
    assert "DLSYS_PROGRESS" not in config.Spawner.environment  # it is in DLSYS_WORK


def test_the_first_login_makes_the_start_page_and_the_second_leaves_it(config):
    ann = spawner("ann")
    page = Path(config.Spawner.environment["DLSYS_WORK"](ann)) / work_folder.START_PAGE
    asyncio.run(config.Spawner.pre_spawn_hook(ann))
    assert page.read_bytes() == (ROOT / "notebooks" / work_folder.START_PAGE).read_bytes()
    page.write_text("mine")
    asyncio.run(config.Spawner.pre_spawn_hook(ann))
    assert page.read_text() == "mine"
    assert config.Spawner.default_url == f"/lab/tree/{work_folder.START_PAGE}"


def test_one_switch_reaches_the_kernels_of_all(config):
    assert config.Spawner.environment["JUPYTER_DEFAULT_PROVISIONER_NAME"] == "dlsys-warm"
    assert VALUES["singleuser"]["extraEnv"]["JUPYTER_DEFAULT_PROVISIONER_NAME"] == "dlsys-warm"


def test_the_hub_knows_every_setting(config):
    """Compared with jupyterhub's own traits, in the environment of `make hub`."""
    if not local.PYTHON.exists():
        pytest.skip("no .venv-hub: make hub HUB_ARGS=--setup makes it, from the package indexes")
    code = ("import sys\nfrom traitlets.config.loader import PyFileConfigLoader\n"
            "from jupyterhub.app import JupyterHub\nfrom jupyterhub import auth, proxy, spawner\n"
            "from jupyterhub.authenticators.shared import SharedPasswordAuthenticator as Shared\n"
            "kinds = {k.__name__: k for k in (JupyterHub, auth.Authenticator, Shared,"
            " proxy.ConfigurableHTTPProxy, spawner.Spawner, spawner.SimpleLocalProcessSpawner)}\n"
            f"loaded = PyFileConfigLoader({str(local.CONFIG)!r}).load_config()\n"
            "print([f'{name}.{key}' for name, values in loaded.items() for key in values"
            " if key not in kinds[name].class_trait_names(config=True)])")
    done = subprocess.run([local.PYTHON, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_page_shows_the_tables_that_were_measured():
    rows = [line for line in (ROOT / "book/hub.md").read_text("utf-8").splitlines()
            if line.startswith("| ")]
    stored = {line for name in ("HUB", "WARM")
              for line in (ROOT / f"benchmarks/{name}.md").read_text("utf-8").splitlines()}
    assert len(rows) > 10
    assert set(rows) <= stored


# ---- rooms

def test_rooms_of_several_stages_are_services_of_the_hub(tmp_path, monkeypatch):
    for name, value in local.environment(8000, tmp_path, SECRET, [5, 8]).items():
        monkeypatch.setenv(name, value)
    services = PyFileConfigLoader(str(local.CONFIG)).load_config().JupyterHub.services
    assert [one["name"] for one in services] == ["room-05", "room-08"]
    for port, one in enumerate(services, 8003):
        assert one["url"] == f"http://127.0.0.1:{port}"
        asked = cli.parser().parse_args(one["command"][3:])
        assert (asked.host, asked.port, asked.prefix) == (
            "127.0.0.1", port, f"/services/{one['name']}/")
        assert asked.address == f"http://127.0.0.1:8000{asked.prefix}"
        assert asked.out == tmp_path / "rooms" / one["name"]


def test_without_rooms_the_hub_has_no_services(config):
    assert config.JupyterHub.services == []


def test_a_port_of_a_room_must_be_free(monkeypatch):
    monkeypatch.setattr(local, "busy", lambda port: port == 8004)
    local.free_ports(8000, 1)
    with pytest.raises(SystemExit, match="port 8004 is in use"):
        local.free_ports(8000, 2)


def test_the_cluster_runs_the_room_that_the_values_name():
    deployment, service, claim = yaml.safe_load_all(
        (ROOT / "deploy/hub/room.yaml").read_text("utf-8"))
    pod = deployment["spec"]["template"]
    box, = pod["spec"]["containers"]
    name, *words = box["args"]
    asked = cli.parser().parse_args(words)
    assert name == "dlsys"
    assert asked.prefix == "/services/room/"
    assert asked.address.endswith(asked.prefix)
    image = VALUES["singleuser"]["image"]
    assert box["image"] == f"{image['name']}:{image['tag']}"
    port = service["spec"]["ports"][0]["port"]
    assert asked.port == port == box["ports"][0]["containerPort"]
    assert VALUES["hub"]["services"]["room"]["url"] == f"http://{service['metadata']['name']}:{port}"
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    mount = box["volumeMounts"][0]["mountPath"]
    assert asked.out.parent.as_posix() == mount
    volume = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert volume == claim["metadata"]["name"]
    assert deployment["spec"]["replicas"] == 1


# ---- messages if it cannot start

def test_a_port_that_is_taken_is_named(monkeypatch):
    monkeypatch.setattr(local, "busy", lambda port: port == 8001)
    with pytest.raises(SystemExit, match=r"hub: port 8001 is in use. Run: make hub PORT=8010"):
        local.free_ports(8000)
    with pytest.raises(SystemExit, match="got 80, expected 1024"):
        local.free_ports(80)


def test_a_short_password_is_refused_and_none_is_drawn(monkeypatch):
    monkeypatch.setenv("DLSYS_HUB_PASSWORD", "short")
    with pytest.raises(SystemExit, match="got 5 characters, expected 8"):
        local.password()
    monkeypatch.delenv("DLSYS_HUB_PASSWORD")
    assert local.password() != local.password()


def test_without_npm_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "HOME", tmp_path / "none")
    monkeypatch.setattr(local.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match=r"npm: not found. Install Node.js"):
        local.set_up()


def test_a_step_that_fails_says_its_last_line():
    with pytest.raises(SystemExit, match=r"failed: no such index. It needs"):
        local.installing([sys.executable, "-c", "raise SystemExit('one\\nno such index')"])


# ---- Zero to JupyterHub

def test_the_volume_is_where_learners_work_and_hides_no_course():
    single = VALUES["singleuser"]
    home, work = "/home/jovyan", single["storage"]["homeMountPath"]
    assert work == single["extraEnv"]["DLSYS_WORK"] == f"{home}/my-work"
    folder = os.path.relpath(work, home)
    assert single["defaultUrl"] == f"/lab/tree/{folder}/{work_folder.START_PAGE}"


def test_the_hook_makes_the_start_page_of_an_empty_volume(tmp_path):
    _, *command = VALUES["singleuser"]["lifecycleHooks"]["postStart"]["exec"]["command"]
    subprocess.run([sys.executable, *command], env={**os.environ, "DLSYS_WORK": str(tmp_path)},
                   check=True)
    assert (tmp_path / work_folder.START_PAGE).exists()


def test_nobody_gets_in_without_an_authenticator_being_chosen():
    hub = VALUES["hub"]["config"]
    assert hub["JupyterHub"]["authenticator_class"] not in ("dummy", "shared-password")
    assert hub["Authenticator"]["allow_all"] is False
