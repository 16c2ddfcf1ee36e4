"A classifier with adapters is written, opened and handed on like any other: nothing is lost on the way without a word"
import json, shutil, subprocess, sys
import pytest, torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
from fastformers.inference import bundle as bundles
from fastformers.models.adapters import *
from fastformers.models.adapters import plain_state
from fastformers.models.adapters import load_adapters, save_adapters
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.inference.bundle import read_bundle
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.predictor import from_hf
from fastformers.models.families import group_names
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm
from fastformers.interpret.forgetting import forgetting
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.load import ADAPTERS, load_body
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.testing import tiny_arch, tiny_df, tiny_families, tiny_tok
from fastformers.ulmfit.run import ulmfit
from test_adapters import learner, loud, methods, moved, needs_peft, no_biases, pred, weights

odd = ['A fine film.', '', 'no', 'x '*200, '[SEP] \N{PILE OF POO} <pad>']
few = ['bert', 'gpt2', 'deberta-v2', 'modernbert']                    # the last has no biases

def adapted(method, family='bert', **kwargs):
    "A learner with something to lose: adapters that do something, and all that trains has moved"
    learn = learner(family, **kwargs)
    loud(method(learn.model), .1)
    learn.fit(1, lr=1e-2)
    return learn

def wanted(learn, texts=odd): return learn.get_preds(dl=learn.dls.test_dl(texts))[0]
def gap(a, b): return float((a-b).abs().max())

# ---- in use, without fastai

@pytest.mark.parametrize('method', methods)
def test_predictors_say_what_the_learners_say(method, tmp_path):
    families,want = [o for o in few if method is not bitfit or o not in no_biases],{}
    for o in families:
        learn = adapted(method, o)
        old,trains = weights(learn.model),{n for n,p in learn.model.named_parameters() if p.requires_grad}
        path = learn.to_hf(tmp_path/o)
        assert not moved(learn.model, old) and weights(learn.model).keys()==old.keys() and {n for n,p in learn.model.named_parameters() if p.requires_grad}==trains # the learner in hand
        assert (path/ADAPTERS).is_file()==(method is add_adapters)
        assert not AutoModel.from_pretrained(path, output_loading_info=True)[1]['unexpected_keys']
        want[o] = wanted(learn)
        assert want[o].std(0).max()>1e-3                              # texts are told apart
    code = "import sys, torch\nfrom fastformers.inference.predictor import from_hf\n" \
           f"torch.save({{o:from_hf({str(tmp_path)!r}+'/'+o, device='cpu').scores({odd!r}) for o in {families}}}, {str(tmp_path/'scores.pt')!r})\n" \
           "sys.exit('fastai' in sys.modules or 'peft' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', code]).returncode==0
    for o,got in torch.load(tmp_path/'scores.pt').items(): assert gap(got, want[o])<1e-5, o

@pytest.mark.parametrize('family', list(tiny_families))
def test_bottlenecks_of_every_family_go_and_come(family, tmp_path):
    learn = learner(family)
    loud(add_adapters(learn.model, width=4))
    p,x = from_hf(learn.save_encoder(tmp_path/'o'), device='cpu'),learn.dls.train.one_batch()[0]
    assert gap(pred(p.model, x), pred(learn.model, x))<1e-5
    assert not moved(p.model, weights(learn.model))

@needs_peft
@pytest.mark.parametrize('family', list(tiny_families))
def test_merging_while_writing_is_merging(family, tmp_path):
    if family=='squeezebert': return
    m = loud(add_lora(learner(family).model, r=2), .1)
    want = {k:v.clone() for k,v in plain_state(m.body).items()} # merging is done in place
    merged = merge_adapters(m).body.state_dict()
    assert list(merged)==list(want) and all(torch.equal(v, want[k]) for k,v in merged.items())

@pytest.mark.parametrize('method', methods)
def test_hugging_face_s_own_head(method, tmp_path):
    learn = adapted(method, head='hf')
    path,want = learn.to_hf(tmp_path/'clf'),wanted(learn)
    assert gap(from_hf(path, device='cpu').scores(odd), want)<1e-5
    again = classifier_learner(learn.dls, path, head='hf')
    assert gap(wanted(again), want)<1e-5
    assert not AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)[1]['unexpected_keys']
    card = (path/'README.md').read_text()
    assert ('pipeline_tag' in card)==(method is not add_adapters) and ('WITHOUT the adapters' in card)==(method is add_adapters)

def test_what_automodel_reads_is_the_network_without_adapters(tmp_path):
    learn = adapted(add_adapters)
    path = learn.to_hf(tmp_path/'clf')
    assert 'WITHOUT the adapters' in (path/'README.md').read_text() and 'WITHOUT' not in (learner().to_hf(tmp_path/'plain')/'README.md').read_text()
    x,body = learn.dls.train.one_batch()[0],AutoModel.from_pretrained(path).eval()
    m = learn.model.eval()
    with torch.no_grad():
        inputs = m.model_inputs(x)
        assert gap(body(**inputs)[0], m.body(**inputs)[0])>1e-2
        assert gap(body(**inputs)[0], remove_adapters(m).body(**inputs)[0])<1e-5    # norms and biases as trained

def test_half_precision_and_the_command_line(tmp_path):
    from fastformers.cli import main
    learn = adapted(add_adapters)
    path = learn.to_hf(tmp_path/'clf')
    main(['export', str(path), str(tmp_path/'half'), '--half'])
    p = from_hf(tmp_path/'half', device='cpu')
    assert (tmp_path/'half'/ADAPTERS).stat().st_size<.6*(path/ADAPTERS).stat().st_size
    assert 0<gap(p.scores(odd), wanted(learn))<1e-2 and 'WITHOUT' in (tmp_path/'half'/'README.md').read_text()

def test_adapters_that_are_frozen_are_written_too(tmp_path):
    learn = adapted(add_adapters)
    train_only(learn.model, lambda n,p: 'LayerNorm' in n)
    learn.opt = None; learn.fit(1, lr=1e-2)
    assert gap(from_hf(learn.to_hf(tmp_path/'o'), device='cpu').scores(odd), wanted(learn))<1e-5
    train_only(learn.model, lambda n,p: True)
    assert gap(from_hf(learn.to_hf(tmp_path/'o'), device='cpu').scores(odd), wanted(learn))<1e-5

def test_a_mix_of_layers_and_another_precision(tmp_path, caplog):
    learn = adapted(add_adapters, layers='mix')
    path,want = learn.save_encoder(tmp_path/'mix'),wanted(learn)
    assert gap(from_hf(path, device='cpu').scores(odd), want)<1e-5
    half = classifier_learner(learn.dls, path, layers='mix', dtype='bfloat16')
    assert {p.dtype for p in half.model.body.parameters()}=={torch.bfloat16} and 0<gap(wanted(half), want)<.05 and 'other weights' not in caplog.text
    assert gap(from_hf(half.save_encoder(tmp_path/'half'), device='cpu').scores(odd), wanted(half))<.02

# ---- handed on

def test_a_learner_goes_on_with_adapters_and_head(tmp_path, caplog):
    learn = adapted(add_adapters)
    again = classifier_learner(learn.dls, learn.save_encoder(tmp_path/'o'))
    assert 'brings adapters along' in caplog.text and 'other weights' not in caplog.text
    assert not moved(again.model, weights(learn.model)) and group_names(again.model)==group_names(learn.model)
    assert {n for n,p in again.model.named_parameters() if p.requires_grad}=={n for n,p in learn.model.named_parameters() if p.requires_grad}
    old = weights(again.model)
    with again.no_bar(), again.no_logging(): again.fit(1, lr=1e-2)
    gone = moved(again.model, old)
    assert any('.adapter.' in k for k in gone) and not any('query' in k or 'word_emb' in k for k in gone)
    for i in range(2): assert gap(from_hf(again.save_encoder(tmp_path/'o'), device='cpu').scores(odd), wanted(again))<1e-5 # over the old one

def test_another_task_gets_the_adapters_and_a_new_head(tmp_path):
    path = adapted(add_adapters).save_encoder(tmp_path/'o')
    df = tiny_df().iloc[:12].assign(label=lambda d: d.label.map(str.upper), is_valid=[False,False,False,True]*3)
    new = classifier_learner(classifier_dls(df, tiny_tok('bert'), bs=4, device='cpu'), path)
    there = from_hf(path, device='cpu').model
    assert not moved(new.model.body, weights(there.body)) and moved(new.model.head, weights(there.head))

@pytest.mark.parametrize('first,then', [(None,'hf'), ('hf',None)])
def test_adapters_go_from_one_kind_of_head_to_the_other(first, then, tmp_path, caplog):
    # a checkpoint without a pooler: the pooler of Hugging Face's head starts new, and trains
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path/'lm'); tiny_tok('bert').save_pretrained(tmp_path/'lm')
    for start in (tmp_path/'lm', None):
        a = adapted(add_adapters, head=first, **({'arch':start} if start else {}))
        caplog.clear()
        b = classifier_learner(a.dls, a.save_encoder(tmp_path/'o'), head=then)
        old,new = weights(a.model.body),weights(b.model.body)
        assert 'other weights' not in caplog.text and any('.adapter.' in k for k in new)
        assert all(torch.equal(new[k], old[k]) for k in new.keys()&old.keys()) and all('pooler' in k for k in new.keys()^old.keys())

def test_what_has_no_place_and_was_not_dropped_is_refused(tmp_path):
    a = learner(head='hf')
    train_only(a.model, lambda n,p: 'pooler' in n)
    path = save_adapters(a.model, tmp_path/'a.safetensors')
    with pytest.raises(ValueError, match='body.pooler.dense.bias is .32,. there, missing here'): load_adapters(learner().model, path)

def test_stages_go_on_or_say_why_not(tmp_path):
    df = tiny_df().iloc[:12].assign(is_valid=[False,False,False,True]*3)
    path = adapted(add_adapters).save_encoder(tmp_path/'o')
    stage = fine_tune_classifier(df, path, tmp_path/'next', epochs=1, lr=1e-2, bs=4)
    assert read_bundle(tmp_path/'next')['adapters']['method']=='add_adapters'
    assert gap(from_hf(tmp_path/'next', device='cpu').scores(odd), wanted(stage.learner))<1e-2   # trained in bfloat16 where that is faster
    for f in (lambda: fine_tune_lm(df.text.tolist(), path, tmp_path/'lm', epochs=1), lambda: ulmfit(df, arch=path, path=tmp_path/'run'),
              lambda: lm_learner(lm_dls(df, path, bs=4, seq_len=32, device='cpu'), path), lambda: load_body(path),
              lambda: lm_learner(lm_dls(df, path, bs=4, seq_len=32, device='cpu'), tiny_arch('bert')).load_encoder(path)):
        with pytest.raises(ValueError, match='adapters it works with.*begin with the directory that this one began with.*load_adapters'): f()
    assert not (tmp_path/'lm').exists()

def test_callbacks_and_measures_that_open_a_directory(tmp_path):
    learn = adapted(add_adapters)
    lm = lm_learner(lm_dls(tiny_df(), tiny_tok('bert'), bs=8, seq_len=32, device='cpu'), tiny_arch('bert')).save_encoder(tmp_path/'lm')
    path = learn.save_encoder(tmp_path/'o')
    with_lm = classifier_learner(learn.dls, path, cbs=AuxiliaryLM())
    assert with_lm.model.lm.body is with_lm.model.body and not moved(with_lm.model.body, weights(learn.model.body))
    t = forgetting({'learner':learn, 'directory':path}, ['A fine film.', 'A dull one.'], head=lm)
    assert gap(*torch.tensor(t.iloc[:,0].tolist()))<1e-5

# ---- load_encoder

def test_load_encoder_takes_adapters_along(tmp_path, caplog):
    for head in (None, 'hf'):
        a = adapted(add_adapters, head=head)
        path = a.save_encoder(tmp_path/'o')
        for f in (lambda m: m, lambda m: add_adapters(m)):
            b = learner(seed=1, head=head)
            f(b.model)
            mine = {k:v for k,v in weights(b.model).items() if not k.startswith(('body.','hf.bert'))}
            caplog.clear()
            b.load_encoder(path)
            assert not moved(b.model.body, weights(a.model.body)) and not mine.keys()&moved(b.model, {**weights(b.model), **mine}) and 'other weights' not in caplog.text
            b.fit(1, lr=1e-2)
    assert b.parent==str(path)

@pytest.mark.parametrize('method', methods)
def test_load_encoder_says_why_not(method, tmp_path):
    plain,path = learner().save_encoder(tmp_path/'plain'),adapted(add_adapters).save_encoder(tmp_path/'o')
    for there in (plain, path):
        b = learner(seed=1)
        (lambda m: method(m) if method is not add_adapters else add_adapters(m, width=8))(b.model)
        old,names = weights(b.model),group_names(b.model)
        if method is bitfit and there==plain: b.load_encoder(there); assert moved(b.model, old); continue
        with pytest.raises(ValueError, match=r'remove_adapters\(learn.model\)'): b.load_encoder(there)
        assert weights(b.model).keys()==old.keys() and not moved(b.model, old) and group_names(b.model)==names

# ---- language models

@needs_peft
def test_a_language_model_with_lora_is_written_merged(tmp_path):
    lm = lm_learner(lm_dls(tiny_df(), tiny_tok('bert'), bs=8, seq_len=32, device='cpu'), tiny_arch('bert'))
    loud(add_lora(lm.model), .1)
    old = weights(lm.model)
    path,x = lm.to_hf(tmp_path/'lm'),lm.dls.valid.one_batch()[0]
    assert not moved(lm.model, old)
    again = lm_learner(lm.dls, path)
    assert gap(pred(again.model, x), pred(lm.model, x))<1e-5 and not again.model.loaded.new and not again.model.loaded.dropped
    assert not hasattr(classifier_learner(learner().dls, path).model.body, 'adapted')

def test_a_language_model_with_bottlenecks_is_refused(tmp_path):
    lm = lm_learner(lm_dls(tiny_df(), tiny_tok('bert'), bs=8, seq_len=32, device='cpu'), tiny_arch('bert'))
    first = lm.save_encoder(tmp_path/'lm')
    was = {o.name:o.read_bytes() for o in first.iterdir()}
    add_adapters(lm.model)
    for f in (lm.save_encoder, lm.to_hf, lm.model.hf.save_pretrained):
        with pytest.raises(ValueError, match='Of a classifier.*save_adapters.*remove_adapters'): f(first)
    assert {o.name:o.read_bytes() for o in first.iterdir()}==was
    remove_adapters(lm.model); lm.save_encoder(first)

# ---- what happens to directories

@pytest.fixture(scope='module')
def two(tmp_path_factory):
    "A learner, written to 'a', and the directory of another one beside it"
    d,a = tmp_path_factory.mktemp('two'),adapted(add_adapters)
    a.save_encoder(d/'a')
    return a,adapted(add_adapters, seed=1).save_encoder(d/'b')

@pytest.mark.parametrize('spoil,match', [('missing','is missing.*add_adapters.*copy the whole'), ('cut','damaged'), ('empty','damaged'), ('other','another classifier'), ('stray','no part of the classifier'),
                                         ('description','no part of the classifier')])
@pytest.mark.parametrize('opened', ['predictor','learner','own head','encoder'])
def test_tampered_adapters_are_said(spoil, match, opened, two, tmp_path):
    a,other = two
    path = shutil.copytree(other.parent/'a', tmp_path/'a')
    f = path/ADAPTERS
    if spoil=='missing': f.unlink()
    if spoil=='cut': f.write_bytes(f.read_bytes()[:-9])
    if spoil=='empty': f.write_bytes(b'')
    if spoil=='other': shutil.copy(other/ADAPTERS, f)
    if spoil=='stray': path = learner().save_encoder(tmp_path/'c'); save_adapters(a.model, path/ADAPTERS)
    if spoil=='description':
        facts = json.loads((path/'classifier.json').read_text()); del facts['adapters']; (path/'classifier.json').write_text(json.dumps(facts))
    head = torch.nn.Module()
    head.forward = lambda h,mask: h[:,0,:3]
    with pytest.raises((ValueError,OSError), match=match) as e:
        if opened=='predictor': from_hf(path, device='cpu')
        if opened=='learner': classifier_learner(a.dls, path)
        if opened=='own head': classifier_learner(a.dls, path, head=head)
        if opened=='encoder': learner().load_encoder(path)
    assert ADAPTERS in str(e.value)

@pytest.mark.parametrize('what', ['save_adapters', '_save_plain'])
def test_a_killed_save_leaves_the_old_directory(what, tmp_path, monkeypatch):
    from fastformers.models import adapters_files
    learn = adapted(add_adapters)
    path = learn.save_encoder(tmp_path/'o')
    was = {o.name:o.read_bytes() for o in path.iterdir()}
    def killed(*args, **kwargs): raise KeyboardInterrupt()
    with monkeypatch.context() as m:
        m.setattr(adapters_files, what, killed)
        with pytest.raises(KeyboardInterrupt): learn.save_encoder(path)
    assert {o.name:o.read_bytes() for o in path.iterdir()}==was and [o.name for o in tmp_path.iterdir()]==['o']
    assert gap(from_hf(path, device='cpu').scores(odd), wanted(learn))<1e-5

# ---- a stage that is stopped

def test_a_stopped_stage_with_adapters_goes_on(tmp_path):
    from fastai.basics import Callback
    class Accident(Callback):
        order = 2000
        def after_batch(self):
            if self.training and self.train_iter==4: raise KeyboardInterrupt()
    from fastformers.callback.resume import Resume
    df = tiny_df().iloc[:12].assign(is_valid=[False,False,False,True]*3)
    start = adapted(add_adapters).save_encoder(tmp_path/'o')
    def stage(name, *cbs): return fine_tune_classifier(df, start, tmp_path/name, epochs=2, lr=1e-2, bs=4, resume=Resume(tmp_path/f'{name}-ckpt', every=1), cbs=list(cbs)).learner
    whole = weights(stage('a').model)
    with pytest.raises(KeyboardInterrupt): stage('b', Accident())
    assert not (tmp_path/'b').exists()
    assert not moved(stage('b').model, whole)
    assert (tmp_path/'a'/ADAPTERS).read_bytes()==(tmp_path/'b'/ADAPTERS).read_bytes()

@pytest.mark.parametrize('method', [pytest.param(add_lora, marks=needs_peft), add_adapters])
def test_a_body_that_was_adapted_alone_is_written_like_the_whole(method, tmp_path):
    "Who is written does not matter: bottlenecks are refused, LoRA is merged"
    learn = lm_learner(lm_dls(tiny_df(), tiny_tok('bert'), seq_len=32, bs=8), tiny_arch('bert'))
    loud(method(learn.model.body), .1)
    if method is add_adapters:
        with pytest.raises(ValueError, match='bottlenecks in it is no checkpoint'): learn.save_encoder(tmp_path/'a')
        return
    report = lm_learner(learn.dls, learn.save_encoder(tmp_path/'a')).model.hf.loaded
    assert not report.new and not report.dropped
