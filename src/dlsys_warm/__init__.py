"""Warm kernels: Jupyter kernels forked from a process that has torch imported already.

``JUPYTER_DEFAULT_PROVISIONER_NAME=dlsys-warm`` is the switch, jupyter_client's own, so JupyterLab,
a hub, nbval and papermill follow it alike; `make` sets it for ``DLSYS_WARM=1``. Linux only.
No lesson imports this package.
"""
