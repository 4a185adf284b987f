"""A hub for trying, on this machine's loopback alone: `make hub` sets it up and runs it.

Every learner has a folder of their own below DLSYS_HUB_DATA, but all run under one account and
share one password, so each can read what the others do. Never let it listen to a network.
"""

import asyncio
import os
import sys
from pathlib import Path

c = get_config()  # noqa: F821
here = Path(__file__).resolve().parents[2]
data = Path(os.environ["DLSYS_HUB_DATA"])
port = int(os.environ["DLSYS_HUB_PORT"])
bin = Path(sys.prefix) / "bin"
course = here / ".venv"


def work(spawner) -> str:
    """The folder of one learner: worksheets, lessons and progress."""
    return str(data / "learners" / spawner.user.name / "my-work")


async def prepare(spawner) -> None:
    """Make the learner's folder with its start page; what is there stays as it is."""
    making = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from dlsys import work_folder; work_folder.start_page()",
        env={**os.environ, "DLSYS_WORK": work(spawner)})
    if await making.wait():
        raise RuntimeError(f"{work(spawner)}: the start page could not be made; the log says why.")


c.JupyterHub.bind_url = f"http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{port + 1}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{port + 2}"
c.ConfigurableHTTPProxy.command = [str(bin.parent / "node_modules/.bin/configurable-http-proxy")]
c.ConfigurableHTTPProxy.pid_file = str(data / "proxy.pid")
c.JupyterHub.cookie_secret_file = str(data / "cookie_secret")
c.JupyterHub.db_url = f"sqlite:///{data / 'hub.sqlite'}"
c.JupyterHub.cleanup_servers = True

c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = os.environ["DLSYS_HUB_PASSWORD"]
c.Authenticator.allow_all = True
c.Authenticator.username_pattern = "[a-z][a-z0-9_-]{0,30}$"  # it becomes a folder's name

c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = str(data / "learners" / "{username}")
c.Spawner.pre_spawn_hook = prepare
c.Spawner.notebook_dir = str(data / "learners" / "{username}" / "my-work")
c.Spawner.default_url = "/lab/tree/00_start_here.ipynb"
c.Spawner.cmd = [str(bin / "jupyterhub-singleuser")]
c.Spawner.args = ["--allow-root"] * (os.geteuid() == 0)
c.Spawner.http_timeout = c.Spawner.start_timeout = 180  # many at once, on few cores
c.Spawner.environment = {
    "DLSYS_WORK": work,
    "PATH": os.pathsep.join([str(bin), str(course / "bin"), os.environ["PATH"]]),
    # The hub's environment sees the packages of .venv, not what they keep in share/ and etc/.
    "JUPYTER_PATH": str(course / "share/jupyter"),
    "JUPYTER_CONFIG_PATH": str(course / "etc/jupyter"),
    "JUPYTERLAB_DIR": str(course / "share/jupyter/lab"),
}


def room(stage: str, own: int) -> dict:
    """The service of a stage's room: behind the proxy for phones too, which have no account.

    Its folder stays, so that a hub that starts again goes on with the code and addresses of before.
    """
    name = f"room-{int(stage):02d}"
    path = f"/services/{name}/"
    return {"name": name, "url": f"http://127.0.0.1:{own}", "display": False, "command": [
        str(course / "bin/python"), "-m", "dlsys.cli", "room", stage, "--host", "127.0.0.1",
        "--port", str(own), "--prefix", path, "--address", f"http://127.0.0.1:{port}{path}",
        "--out", str(data / "rooms" / name)]}


c.JupyterHub.services = [room(stage, port + 3 + k) for k, stage in enumerate(
    os.environ["DLSYS_HUB_ROOMS"].split())]
if switch := os.environ.get("JUPYTER_DEFAULT_PROVISIONER_NAME"):
    c.Spawner.environment["JUPYTER_DEFAULT_PROVISIONER_NAME"] = switch
