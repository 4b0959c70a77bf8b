# The public names of the package; ``__init__.py`` reads this file. See ``conquiet.core.lazy_exports``.

from conquiet.app.application import App as App
from conquiet.app.emission import Emit as Emit
from conquiet.app.emission import SyncEmit as SyncEmit
from conquiet.app.settings import AppSettings as AppSettings
from conquiet.app.testing import TestApp as TestApp
