"""Integrations with web frameworks: emit a message in the transaction of the request.

    contrib.flask     Flask: a session for each request, committed with it; the extra "flask"
    contrib.django    Django: the ORM's transaction, django.tasks, migrations; the extra "django"

FastAPI and Starlette need none: ``FastAPI(lifespan=app.lifespan)`` and ``app.emit(…, session=session)``. An integration
adds no promise: it passes the framework's transaction to ``App``.
"""
