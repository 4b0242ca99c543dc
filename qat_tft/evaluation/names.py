"""What forecasts, quantiles and shares are called where people read them."""

NAIVE = "seasonal_naive"
LAST = "last_value"
RIDGE = "ridge"
SIMPLE = (RIDGE, NAIVE, LAST)
"""Forecasts that need no network: what a model has to beat."""
TITLES = {
    NAIVE: "seasonal naive",
    LAST: "last value",
    RIDGE: "ridge regression",
    "fp32": "FP32",
    "continued": "FP32, trained on",
    "ptq": "calibrated only (PTQ)",
    "qat": "QAT",
    "int8": "INT8 file",
}


def integer_name(bits: int) -> str:
    """Return what a file is called whose weights have so few bits: INT8, INT4 or INT2."""
    return f"INT{bits}"


def quantile_name(level: float) -> str:
    """Return the usual name of a quantile: P50 for 0.5, P2.5 for 0.025."""
    return f"P{level * 100:.6g}"


def signed_percent(share: float, digits: int = 1) -> str:
    """Return a share as percent with its sign, with a real minus sign."""
    return f"{share * 100:+.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def risk_text(risk: float | None) -> str:
    """Return a q-risk as tables show it; a dash where it is undefined."""
    return "-" if risk is None else f"{risk:.5f}"


def share_text(share: float | None) -> str:
    """Return a share as tables show it; a dash where it is undefined."""
    return "-" if share is None else f"{share:.1%}"
