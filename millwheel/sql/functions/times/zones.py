"""Time zones by name, by abbreviation and by offset."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from millwheel.sql.functions.registry import ValueRefused, implements
from millwheel.sql.functions.times.intervals import SECOND, IntervalValue, shown, towards_zero

OUT_OF_RANGE = "timestamp out of range; years 1 to 9999 are available here"
MOST_HOURS = 15
_MOST_POSIX_HOURS = 167

_OFFSETS = """
ACDT=630 ACSST=630 ACST=570 ACT=-300 ACWST=525 ADT=-180 AEDT=660 AESST=660 AEST=600 AFT=270
AKDT=-480 AKST=-540 ALMST=420 ALMT=360 AMT=-240 AST=-240 AWSST=540 AWST=480 AZOST=0 AZOT=-60
BDST=120 BDT=360 BNT=480 BORT=480 BOT=-240 BRA=-180 BRST=-120 BRT=-180 BST=60 BTT=360 CADT=630
CAST=570 CCT=480 CDT=-300 CEST=120 CET=60 CETDST=120 CHADT=825 CHAST=765 CHUT=600 CLST=-180
COT=-300 CST=-360 CXT=420 DDUT=600 EAT=180 EDT=-240 EEST=180 EET=120 EETDST=180 EGST=0 EGT=-60
EST=-300 FET=180 FJST=780 FJT=720 FNST=-60 FNT=-120 GALT=-360 GAMT=-540 GFT=-180 GILT=720 GMT=0
HKT=480 HST=-600 ICT=420 IDT=180 IRT=210 IST=120 JAYT=540 JST=540 KDT=600 KGST=360 KST=540
LHST=630 LIGT=600 MART=-570 MDT=-360 MEST=120 MESZ=120 MET=60 METDST=120 MEZ=60 MHT=720 MMT=390
MPT=600 MSD=240 MST=-420 MUST=300 MUT=240 MVT=300 MYT=480 NDT=-150 NFT=-210 NPT=345 NST=-210
NZDT=780 NZST=720 NZT=720 PDT=-420 PET=-300 PGT=600 PHT=480 PKST=360 PKT=300 PMDT=-120 PMST=-180
PONT=660 PST=-480 PWT=540 PYST=-180 RET=240 SADT=630 SAST=120 SCT=240 TAHT=-600 TFT=300 TJT=300
TOT=780 TRUT=600 TVT=720 UCT=0 ULAST=540 UT=0 UTC=0 UYST=-120 UYT=-180 UZST=360 UZT=300 VUT=660
WADT=480 WAKT=720 WAST=420 WAT=60 WDT=540 WET=0 WETDST=60 WFT=720 WGST=-120 WGT=-180 XJT=360
YAPT=600 YEKST=360 Z=0 ZULU=0
"""
_MINUTES = dict(pair.split("=") for pair in _OFFSETS.split())
"""Minutes east of Greenwich, by abbreviation, as in Postgres' set "Default"."""

_WITHOUT_OFFSET = """
AMST ANAST ANAT ARST ART AZST AZT CKT CLT DAVT EASST EAST FKST FKT GEST GET GYT IOT IRKST IRKT KGT
KOST KRAST KRAT LHDT LINT LKT MAGST MAGT MAWT MSK NOVST NOVT NUT OMSST OMST PETST PETT PYT SGT TKT
TMT ULAT VET VLAST VLAT VOLT YAKST YAKT YEKT
"""
_CHANGING = frozenset(_WITHOUT_OFFSET.split())
"""Abbreviations with an offset that depends on the time."""

_OF_THE_MACHINE = {"localtime", "posixrules"}

_POSIX = re.compile(
    r"(?:<[^>]*>|[^\d,+<-]*)([+-]?)(\d{1,3})(?::(\d{1,2}))?(?::(\d{1,2}))?\Z", re.ASCII
)
_OFFSET = re.compile(r"([+-])(?:(\d{1,2})(?::(\d{1,2})(?::(\d{1,2}))?)?|(\d{3,4}))\Z", re.ASCII)


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones() - _OF_THE_MACHINE}


def abbreviated(name: str) -> timedelta | None:
    """The offset of an abbreviation; None: there is none.

    Raises:
        ValueRefused: it depends on the time.
    """
    found = _MINUTES.get(name.upper())
    if found is not None:
        return timedelta(minutes=int(found))
    if name.upper() in _CHANGING:
        raise ValueRefused(
            f'the time zone "{name}" is not available here, since its offset changed: use a name '
            "such as Europe/Moscow"
        )
    return None


@lru_cache(maxsize=1024)
def zone_named(name: str) -> tzinfo:
    """The zone of an abbreviation, a name or a specification as in POSIX.

    Raises:
        ValueRefused: there is none.
    """
    if not name.isascii():
        raise ValueRefused(
            f'time zone "{name}" not recognized; names such as Europe/Berlin are available'
        )
    east = abbreviated(name)
    if east is not None:
        return timezone(east)
    known = _names().get(name.lower())
    if known is not None:
        return ZoneInfo(known)
    match = _POSIX.match(name)
    if match is None:
        raise ValueRefused(
            f'time zone "{name}" not recognized; names such as Europe/Berlin are available'
        )
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    if hours > _MOST_POSIX_HOURS or minutes > 59 or seconds > 60:
        raise ValueRefused(
            f'time zone "{name}" not recognized; names such as Europe/Berlin are available'
        )
    west = hours * 3600 + minutes * 60 + seconds
    return _fixed(west if match[1] == "-" else -west)


def _fixed(seconds: int) -> tzinfo:
    try:
        return timezone(timedelta(seconds=seconds))
    except ValueError:
        raise ValueRefused("time zones of a day or more are not available here") from None


@lru_cache(maxsize=256)
def offset_zone(text: str) -> tzinfo | None:
    """The zone of an offset such as ``+05:30``, positive east of Greenwich; None: it is no offset.

    Raises:
        ValueRefused: it is too large.
    """
    match = _OFFSET.match(text)
    if match is None:
        return None
    sign, hour, minute, second, both = match.groups()
    if both is not None:
        hour, minute = both[:-2], both[-2:]
    hours, minutes, seconds = int(hour), int(minute or 0), int(second or 0)
    if hours > MOST_HOURS or minutes > 59 or seconds > 59:
        raise ValueRefused(f'time zone displacement out of range: "{text}"')
    east = hours * 3600 + minutes * 60 + seconds
    return _fixed(-east if sign == "-" else east)


# -- local time and instants ------------------------------------------------------------------


def local(instant: datetime, zone: tzinfo) -> datetime:
    """The local time in a zone."""
    try:
        return instant.astimezone(zone).replace(tzinfo=None, fold=0)
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


def instant(moment: datetime, zone: tzinfo) -> datetime:
    """The instant of a local time in a zone, in UTC.

    A local time that a change of the clocks skips is taken as before the change, one that comes
    twice as after it.
    """
    aware = moment.replace(tzinfo=zone)
    offset = min(_offset(aware), _offset(aware.replace(fold=1)))
    try:
        return moment.replace(tzinfo=UTC) - offset
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


def _offset(aware: datetime) -> timedelta:
    found = aware.utcoffset()
    assert found is not None
    return found


def utc(moment: datetime) -> datetime:
    """A local time in UTC as an instant."""
    return moment.replace(tzinfo=UTC)


def naive(instant: datetime) -> datetime:
    """An instant as the local time in UTC."""
    return instant.replace(tzinfo=None)


@implements("timezone(text,timestamptz)")
def local_in(name: str, value: datetime) -> datetime:
    return local(value, zone_named(name))


@implements("timezone(text,timestamp)")
def instant_in(name: str, value: datetime) -> datetime:
    return instant(value, zone_named(name))


def _offset_of(zone: IntervalValue) -> timedelta:
    if zone.months or zone.days:
        raise ValueRefused(f'interval time zone "{shown(zone)}" must not include months or days')
    return timedelta(seconds=towards_zero(zone.micros, SECOND)[0])


@implements("timezone(interval,timestamptz)")
def local_at(zone: IntervalValue, value: datetime) -> datetime:
    try:
        return naive(value) + _offset_of(zone)
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


@implements("timezone(interval,timestamp)")
def instant_at(zone: IntervalValue, value: datetime) -> datetime:
    try:
        return utc(value) - _offset_of(zone)
    except OverflowError:
        raise ValueRefused(OUT_OF_RANGE) from None


implements("timezone(timestamptz)")(naive)
implements("timezone(timestamp)")(utc)
