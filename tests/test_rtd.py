"Replaced token detection: what it has beyond the other objectives (see test_objectives)"
import logging, pytest, torch
from fastai.torch_core import set_seed
from transformers import AutoModel, AutoModelForPreTraining
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.papers.electra import RTD
from fastformers.ulmfit.stage import fine_tune_lm, pretrain_lm
from test_contracts_common import *

df,tok,arch = tiny_df(),tiny_tok('electra'),tiny_arch('electra', num_hidden_layers=2)

def learner(bs=8, drop_mult=1., arch=arch, **kwargs):
    set_seed(0)
    return quiet(lm_learner(lm_dls(df, tok, RTD(tok), seq_len=32, bs=bs, device='cpu'), arch, drop_mult=drop_mult, **kwargs))

def test_the_discriminator_is_handed_on(tmp_path):
    learn = learner(); learn.fit(1, 1e-3)
    learn.save_encoder(tmp_path/'lm')
    body = AutoModel.from_pretrained(tmp_path/'lm').state_dict()
    assert all(torch.equal(v, learn.model.body.state_dict()[k]) for k,v in body.items())
    AutoModelForPreTraining.from_pretrained(tmp_path/'lm')
    c = quiet(classifier_learner(classifier_dls(df, str(tmp_path/'lm'), bs=8, device='cpu'), tmp_path/'lm'))
    assert not c.model.loaded.new and torch.equal(c.model.body.encoder.layer[0].output.dense.weight, learn.model.body.encoder.layer[0].output.dense.weight)
    c.fit(1, 1e-3); c.to_hf(tmp_path/'out')
    assert from_hf(tmp_path/'out')(['a fine film'])[0]['label'] in c.dls.vocab
    for again in (learner(arch=tmp_path/'lm'), learner().load_encoder(tmp_path/'lm')):
        assert [*again.validate()]==pytest.approx([*learn.validate()], rel=1e-6)

def test_stages_know_it_by_name(tmp_path):
    first = pretrain_lm(df, tmp_path/'one', tok, arch, objective='rtd', epochs=1, seq_len=32, bs=16)
    second = fine_tune_lm(df, tmp_path/'one', path=tmp_path/'two', objective='rtd', epochs=1, seq_len=32, bs=16)
    assert first.path!=second.path and (tmp_path/'two'/'generator').is_dir()

def test_the_accuracy_stands_beside_that_of_a_discriminator_that_finds_nothing():
    learn = learner()
    out = learn.model.hf.discriminator_predictions.dense_prediction
    torch.nn.init.zeros_(out.weight); torch.nn.init.constant_(out.bias, -1.)
    _,right,originals = learn.validate()
    assert right==originals and .8<right<1

def test_verbs():
    learn = learner(); learn.fit(1, 1e-3)
    dec = learn.get_preds(with_decoded=True, with_loss=True)
    n = len(learn.dls.valid_ds)
    assert [len(o) for o in dec[0]]==[n]*3 and len(dec[2])==len(dec[3])==n
    learn.dls.show_batch(max_n=2); learn.show_results(max_n=2); learn.predict('a fine film')
    assert learn.lr_find(num_it=5, show_plot=False).valley>0

def test_embeddings_grow_for_both_networks(caplog):
    learn = learner()
    with caplog.at_level(logging.WARNING): learn.model.fit_vocab(1030)
    m = learn.model
    x,y = learn.dls.one_batch()
    assert [o.shape[-1] for o in m(x)]==[1030, x.shape[1], x.shape[1]]
    assert m.generator.hf.get_output_embeddings().weight is m.body.get_input_embeddings().weight is m.generator.body.get_input_embeddings().weight
    assert m.config.vocab_size==m.generator.config.vocab_size==1030
