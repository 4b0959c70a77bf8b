"""Doors to web frameworks: emit a message in the transaction of the request.

    contrib.flask     Flask: a session for each request, committed with it; the extra "flask"
    contrib.django    Django: the ORM's own transaction, django.tasks, migrations; the extra "django"

FastAPI and Starlette need none: ``FastAPI(lifespan=app.lifespan)`` and ``app.emit(…, session=session)``. A door adds no
promise: it gives ``App`` the transaction that the framework has.
"""
