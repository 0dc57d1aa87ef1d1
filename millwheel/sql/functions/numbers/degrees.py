"""Trigonometric functions of degrees, which are exact where a table of them is.

As in Postgres, each is divided by its own value at an angle where the result is known.
"""

from __future__ import annotations

import math

from millwheel.sql.functions.numbers.mathematics import RADIANS
from millwheel.sql.functions.registry import ValueRefused, implements

_SIN_30 = math.sin(30 * RADIANS)
_REST_OF_COS_60 = 1 - math.cos(60 * RADIANS)
_ASIN_HALF, _ACOS_HALF, _ATAN_1 = math.asin(0.5), math.acos(0.5), math.atan(1)


def _low_sine(angle: float) -> float:
    """Up to 30 degrees."""
    return math.sin(angle * RADIANS) / _SIN_30 / 2


def _low_cosine(angle: float) -> float:
    """Up to 60 degrees."""
    return 1 - (1 - math.cos(angle * RADIANS)) / _REST_OF_COS_60 / 2


def _first_sine(angle: float) -> float:
    """Up to 90 degrees."""
    return _low_sine(angle) if angle <= 30 else _low_cosine(90 - angle)


def _first_cosine(angle: float) -> float:
    return _low_cosine(angle) if angle <= 60 else _low_sine(90 - angle)


_TAN_45 = _first_sine(45) / _first_cosine(45)
_COT_45 = _first_cosine(45) / _first_sine(45)


def _reduced(angle: float) -> tuple[float, float, float]:
    """The same angle up to 90 degrees, and the signs of its sine and cosine."""
    angle = math.fmod(angle, 360)
    sine = cosine = 1.0
    if angle < 0:
        angle, sine = -angle, -sine
    if angle > 180:
        angle, sine = 360 - angle, -sine
    if angle > 90:
        angle, cosine = 180 - angle, -cosine
    return angle, sine, cosine


@implements("sind(float8)")
def sine(angle: float) -> float:
    angle, sign, _ = _reduced(angle)
    return sign * _first_sine(angle)


@implements("cosd(float8)")
def cosine(angle: float) -> float:
    angle, _, sign = _reduced(angle)
    return sign * _first_cosine(angle)


@implements("tand(float8)")
def tangent(angle: float) -> float:
    angle, first, second = _reduced(angle)
    below = _first_cosine(angle)
    if not below:
        raise ValueRefused("tand is infinite, which is not available")
    return first * second * (_first_sine(angle) / below / _TAN_45) or 0.0


@implements("cotd(float8)")
def cotangent(angle: float) -> float:
    angle, first, second = _reduced(angle)
    below = _first_sine(angle)
    if not below:
        raise ValueRefused("cotd is infinite, which is not available")
    found = _first_cosine(angle) / below / _COT_45
    if math.isinf(found):
        raise ValueRefused("cotd is infinite, which is not available")
    return first * second * found or 0.0


def _first_arcsine(value: float) -> float:
    """Of a value from 0 to 1."""
    if value <= 0.5:
        return math.asin(value) / _ASIN_HALF * 30
    return 90 - math.acos(value) / _ACOS_HALF * 60


def _first_arccosine(value: float) -> float:
    if value <= 0.5:
        return 90 - math.asin(value) / _ASIN_HALF * 30
    return math.acos(value) / _ACOS_HALF * 60


@implements("asind(float8)")
def arcsine(value: float) -> float:
    _check(value)
    return _first_arcsine(value) if value >= 0 else -_first_arcsine(-value)


@implements("acosd(float8)")
def arccosine(value: float) -> float:
    _check(value)
    return _first_arccosine(value) if value >= 0 else 90 + _first_arcsine(-value)


def _check(value: float) -> None:
    if not -1 <= value <= 1:
        raise ValueRefused("input is out of range")


@implements("atand(float8)")
def arctangent(value: float) -> float:
    return math.atan(value) / _ATAN_1 * 45


@implements("atan2d(float8,float8)")
def arctangent_of(y: float, x: float) -> float:
    return math.atan2(y, x) / _ATAN_1 * 45
