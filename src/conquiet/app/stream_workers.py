"""The processor and the relay's target of an application's stream, with partitions and without."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conquiet.processor.partitioned import PartitionedProcessor
    from conquiet.processor.processor import Processor
    from conquiet.redis_transport.client import AnyRedis
    from conquiet.transactional.targets import ToProcessor


def new_processor(
    redis: "AnyRedis", stream: str, partitions: int, **options: Any
) -> "Processor | PartitionedProcessor":
    """Return the processor of a stream; options as both of them take them."""
    if partitions == 1:
        from conquiet.processor.processor import Processor

        return Processor(redis, [stream], **options)
    from conquiet.processor.partitioned import PartitionedProcessor

    return PartitionedProcessor(redis, stream, partitions=partitions, **options)


def new_target(redis: "AnyRedis", stream: str, *, is_partitioned: bool) -> "ToProcessor":
    """Return the target of a relay for the handlers of a stream."""
    if is_partitioned:
        from conquiet.transactional.targets import ToPartitions

        return ToPartitions(redis, stream)
    from conquiet.transactional.targets import ToProcessor

    return ToProcessor(redis, stream)
