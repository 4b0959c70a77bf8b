import pytest

from conquiet.errors import ConfigurationError
from conquiet.processor import ProcessorSettings
from conquiet.processor.settings import engine_settings
from conquiet.queue import Retention
from conquiet.runtime import RuntimeSettings


def test_a_retention_that_would_have_no_effect_is_refused() -> None:
    runtime = RuntimeSettings(retention=Retention(keep_s=60))

    with pytest.raises(ConfigurationError, match="give ProcessorSettings"):
        engine_settings(ProcessorSettings(), runtime)
