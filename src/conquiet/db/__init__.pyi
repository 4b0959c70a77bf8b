# The public names of the package; ``__init__.py`` reads this file. See ``conquiet.core.lazy_exports``.

from conquiet.db.engine_pool import pool_capacity as pool_capacity
from conquiet.db.helpers import insert_idempotent as insert_idempotent
from conquiet.db.helpers import occ_update as occ_update
from conquiet.db.helpers import retry_on_conflict as retry_on_conflict
from conquiet.db.locking import LockStrategy as LockStrategy
from conquiet.db.locking import make_lock_backend as make_lock_backend
from conquiet.db.locks import AdvisoryLock as AdvisoryLock
from conquiet.db.locks import RowLock as RowLock
from conquiet.db.models import DbOperation as DbOperation
from conquiet.db.models import DbOperationType as DbOperationType
from conquiet.db.models import WriteOutcome as WriteOutcome
from conquiet.db.session import DbSession as DbSession
from conquiet.db.writer import DbWriter as DbWriter
