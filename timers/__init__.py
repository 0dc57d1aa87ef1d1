"""Time as pure data structures: holds, timer queues, low watermarks. No await, SQL or clock."""

from millwheel.timers.holds import Holds
from millwheel.timers.queue import Pending, TimerQueue
from millwheel.timers.watermark import SlotWatermarks, WatermarkReport, Watermarks

__all__ = ["Holds", "Pending", "SlotWatermarks", "TimerQueue", "WatermarkReport", "Watermarks"]
