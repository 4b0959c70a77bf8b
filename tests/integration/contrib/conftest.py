from tests.integration.app.conftest import mariadb_url

__all__ = ["mariadb_url"]
