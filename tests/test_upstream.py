"Behaviour of fastai, transformers, torch and nbdev that this package leans on: when one of these fails, look for what the sentence says"
import inspect, subprocess, sys
import pytest, torch
from torch import nn
from fastai.basics import AvgLoss, Learner, SGD
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.training import GradientAccumulation
from fastai.data.load import DataLoader
from fastai.torch_core import maybe_gather, num_distrib, rank_distrib
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
from fastformers.testing import tiny_arch, tiny_tok

def test_fastais_optimizer_zeroes_gradients_so_that_frozen_weights_would_go_on_decaying():
    p = nn.Parameter(torch.ones(2)); p.sum().backward()
    opt = SGD([p], lr=.1); opt.zero_grad()
    assert p.grad is not None and not p.grad.any()                       # `FreezeGrads` sets None

def test_fastai_warns_when_it_is_imported_and_our_list_of_all_names_does_not():
    def says(name): return subprocess.run([sys.executable, '-c', f'import {name}'], capture_output=True, text=True).stderr
    assert 'torch.jit' not in says('fastformers.all')                   # `catch_warnings` in all.py
    if torch.__version__.startswith('2.10.'): pytest.skip('later versions of torch warn')
    assert 'torch.jit.script' in says('fastai.layers')

def test_a_loader_keeps_its_order_in_a_private_attribute():
    dl = DataLoader([1,2,3], bs=2, num_workers=0); list(dl)
    assert list(dl._DataLoader__idxs)==[0,1,2]                          # `TokensDL.sample` reads it

def test_the_order_of_callbacks_around_mixed_precision():
    assert MixedPrecision.order==10 and GradientAccumulation.order==MixedPrecision.order-4

def test_the_number_of_processes_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv('WORLD_SIZE', '3'); monkeypatch.setenv('RANK', '2')
    assert (num_distrib(), rank_distrib())==(3, 2)

def test_fastai_averages_scalars_of_processes():
    assert '.mean()' in inspect.getsource(maybe_gather)                  # so `TokensDL.to_detach` gathers nothing

def test_the_mean_loss_of_fastai_weighs_rows():
    assert 'find_bs(learn.yb)' in inspect.getsource(AvgLoss.accumulate)  # `TokenMean` weighs predicted tokens

def test_the_loss_of_the_backward_pass_is_a_copy():
    code = inspect.getsource(Learner._do_one_batch)
    assert 'self.loss = self.loss_grad.clone()' in code and code.index("self('after_loss')")>code.index('self.loss_grad')

def test_a_fit_is_told_from_a_validation_by_a_lock():
    assert 'self.lock' in inspect.getsource(Learner.validation_context)  # `in_fit`

def test_a_config_makes_the_model_of_each_auto_class():
    cfg = tiny_arch('bert')
    assert AutoModelForMaskedLM.from_config(cfg).base_model_prefix=='bert' and AutoModel.from_config(cfg).base_model.config.model_type=='bert'

def test_a_new_head_is_drawn_from_torchs_random_state():
    def head():
        torch.manual_seed(3)
        return AutoModelForSequenceClassification.from_config(tiny_arch('bert')).classifier.weight
    assert torch.equal(head(), head())

def test_tied_embeddings_are_one_tensor():
    hf = AutoModelForMaskedLM.from_config(tiny_arch('bert'))
    assert hf.get_output_embeddings().weight is hf.get_input_embeddings().weight

def test_an_output_is_read_by_number_and_by_name():
    o = AutoModel.from_config(tiny_arch('bert')).eval()(input_ids=torch.tensor([[5,6,7]]))
    assert o[0] is o.last_hidden_state and 'pooler_output' in o         # of the graph in `inference.onnx`

def test_special_tokens_in_a_text_are_special_ids_unless_split():
    tok = tiny_tok('bert').backend_tokenizer
    old,special = tok.encode_special_tokens,tok.token_to_id('[SEP]')
    try:
        tok.encode_special_tokens = False
        assert special in tok.encode('a [SEP] b', add_special_tokens=False).ids
        tok.encode_special_tokens = True
        assert special not in tok.encode('a [SEP] b', add_special_tokens=False).ids
    finally: tok.encode_special_tokens = old

def test_mixed_precision_of_fastai_is_for_cuda():
    assert "'cuda'" in inspect.getsource(MixedPrecision.before_fit) or '"cuda"' in inspect.getsource(MixedPrecision.before_fit) # `cpu_bf16` is ours

def test_fused_adamw_runs_on_a_cpu():
    p = nn.Parameter(torch.ones(3)); p.grad = torch.ones(3)
    torch.optim.AdamW([p], lr=.1, fused=True).step()
    assert (p<1).all()

def test_the_export_of_nbdev_reads_pyproject():
    from nbdev.config import get_config
    assert get_config().lib_path.name=='fastformers'
