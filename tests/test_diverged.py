"A loss that diverges: the fit stops there, and what was finished before is kept"
import pytest, torch
from fastai.basics import Callback, Learner
from fastformers.callback.progress import Diverged
from fastformers.inference.predictor import from_hf
from fastformers.learner.save import as_predictor
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm
from transformers import AutoModelForMaskedLM

class Burst(Callback):
    "Spoil the loss of one step"
    def after_loss(self):
        if self.training and self.epoch==1 and self.iter==4: self.learn.loss_grad = self.learn.loss = self.loss*float('nan')

def test_a_stage_stops():
    with pytest.raises(Diverged, match='in step 5 of epoch 1.*try half of it'):
        fine_tune_lm(tiny_df(), tiny_arch('bert'), tok=tiny_tok(), seq_len=32, bs=8, epochs=2., cbs=[Burst()])

def test_a_training_on_all_rows_that_diverges_writes_the_first(tmp_path, monkeypatch, caplog):
    fits,fit = [],Learner.fit_schedule
    def second(self, *args, **kwargs):
        fits.append(self)
        if len(fits)==2: raise Diverged('the loss is nan')
        return fit(self, *args, **kwargs)
    monkeypatch.setattr(Learner, 'fit_schedule', second)
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path/'arch'); tiny_tok('bert').save_pretrained(tmp_path/'arch')
    stage = fine_tune_classifier(tiny_df(), tmp_path/'arch', tmp_path/'c', refit=True, epochs=1, bs=8, head_init='probe')
    texts = tiny_df().text.tolist()
    assert len(fits)==2 and 'the loss is nan' in caplog.text
    assert torch.allclose(from_hf(tmp_path/'c').scores(texts), as_predictor(stage.learner).scores(texts), atol=1e-5)
