"""JupyterHub for a machine with a pool of GPUs: everybody who logs in shares it.

    sudo jupyterhub -f jupyterhub_config.py

UNIX users log in with their passwords (PAM). To try it without root and without accounts:

    HUB_AUTHENTICATOR=dummy jupyterhub -f jupyterhub_config.py

The pool's daemon is a service of its own (docs/systemd.md); its socket is found by /etc/jupyter-elastic/config.toml.
"""

import os

from jupyter_elastic.hub import configure
from jupyter_elastic.platform import endpoints

c = get_config()  # noqa: F821 - JupyterHub's

c.JupyterHub.bind_url = "http://127.0.0.1:8000"  # behind your web server, which speaks HTTPS
c.Authenticator.allow_all = True  # every UNIX user; or name them in c.Authenticator.allowed_users
c.Authenticator.admin_users = {os.environ.get("HUB_ADMIN", "ada")}  # `admin = ["ada"]` in config.toml: the pool's too

dummy = os.environ.get("HUB_AUTHENTICATOR") == "dummy"
socket = ""
if dummy:  # any name, any password, all of them you: for a try only
    socket = endpoints.find().endpoint.removeprefix("ipc://")  # of your pool: the servers have other homes
    c.JupyterHub.authenticator_class = "dummy"
    c.JupyterHub.spawner_class = "simple"

configure(  # last: it adds to what is set above
    c,
    socket=socket,
    service="managed",  # pages of one's jobs and usage at /services/elastic/
    service_url=os.environ.get("HUB_SERVICE_URL", "http://127.0.0.1:10101"),
    service_user="" if dummy else os.environ.get("HUB_POOL_USER", "jupyter-elastic"),  # whom the daemon runs as
)
