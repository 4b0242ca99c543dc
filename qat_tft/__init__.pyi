from .api.forecaster import Forecaster as Forecaster
from .checkpointing.recompute import CheckpointRunner as CheckpointRunner
from .checkpointing.recompute import runner_for as runner_for
from .config.run import RunConfig as RunConfig
from .data.preprocessing import Preprocessing as Preprocessing
from .data.reading.parquet import read_panel as read_panel
from .data.sample.samples import embedded_rentals as embedded_rentals
from .data.sample.samples import write_sample as write_sample
from .data.split import Split as Split
from .data.windows import Windows as Windows
from .errors import CheckFailed as CheckFailed
from .errors import QatTftError as QatTftError
from .errors import UserError as UserError
from .export.build.run_export import export_run as export_run
from .export.inference.session import ForecastSession as ForecastSession
from .export.verify.check import check_model as check_model
from .model.loss import q_risk as q_risk
from .model.loss import quantile_loss as quantile_loss
from .model.tft import Forecast as Forecast
from .model.tft import TemporalFusionTransformer as TemporalFusionTransformer
from .quantization.calibrate import calibrate as calibrate
from .quantization.prepare import QATTemporalFusionTransformer as QATTemporalFusionTransformer
from .quantization.scheme import scheme_for as scheme_for
from .runs.folder import RunFolder as RunFolder
from .schema import Schema as Schema
from .training.job import resume as resume
from .training.job import train as train

__version__: str
__all__: list[str]
