"A stage is a directory that plain Hugging Face classes open; it is written whole or not at all"
import json, pytest, torch
from pathlib import Path
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from fastformers.learner import save as learner_module
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.files import content_hash
from fastformers.text.tokenizer import tok_hash
from fastformers.text.train_tokenizer import train_tokenizer
from test_contracts_common import *

pytestmark = pytest.mark.exact

def stage(family, path):
    "A language model of `family` after a step of training, saved"
    obj = objective(family)
    torch.manual_seed(0)
    learn = quiet(lm_learner(lm_dls(tiny_df().iloc[:16], obj.tfm, obj, bs=64), tiny_arch(family)))
    learn.fit(1, lr=1e-2); learn.save_encoder(path, seconds=1.5)
    learn.model.eval()
    return learn

@pytest.fixture(scope='module', params=masked+['gpt2','llama'])
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp('stages')/request.param
    return request.param, stage(request.param, path), path

@torch.no_grad()
def test_hugging_face_reads_body_and_head(saved):
    family,learn,path = saved
    cls = AutoModelForCausalLM if family in causal else AutoModelForMaskedLM
    hf,info = cls.from_pretrained(path, output_loading_info=True)
    assert not any(info[k] for k in ('missing_keys','unexpected_keys','mismatched_keys'))
    if family!='llama': assert hf.get_output_embeddings().weight.data_ptr()==hf.get_input_embeddings().weight.data_ptr()
    x = batch(tokenizer(family), texts[:5])
    args = learn.model.model_inputs(x)
    assert gap(hf.eval()(**args).logits[x.real], learn.model.hf(**args).logits[x.real])<1e-6
    body = AutoModel.from_pretrained(path).eval()
    assert gap(body(**args)[0][x.real], learn.model.body(**args)[0][x.real])<1e-6

def test_hugging_face_reads_the_tokenizer(saved):
    family,learn,path = saved
    tok,mine = AutoTokenizer.from_pretrained(path),tiny_tok(family)
    assert tok.is_fast and tok_hash(tok)==tok_hash(mine) and tok.padding_side==mine.padding_side and tok.model_max_length==mine.model_max_length
    a,b = tokenizer(family),HFTokenizer(tok)
    for t in texts+pairs:
        for k in ('ids','segment_ids'): assert torch.equal(getattr(a(t),k), getattr(b(t),k))
    assert (a.left,a.pad.ids.item())==(b.left,b.pad.ids.item())

def test_a_classifier_starts_from_the_body_that_was_saved(saved):
    family,learn,path = saved
    cl = classifier_learner(classifier_dls(tiny_df(), path), path)
    theirs,mine = learn.model.body.state_dict(),cl.model.body.state_dict()
    assert mine.keys()<=theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)
    assert not cl.model.loaded.new and cl.lineage.parent==str(path)

def test_a_language_model_goes_on_where_it_was_left(saved):
    family,learn,path = saved
    obj = objective(family)
    again = lm_learner(lm_dls(tiny_df().iloc[:16], obj.tfm, obj), path)
    theirs,mine = learn.model.state_dict(),again.model.state_dict()
    assert mine.keys()==theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine) and not again.model.new_head

def test_stage_json_says_where_it_comes_from(saved, tmp_path):
    family,learn,path = saved
    o = json.loads((path/'stage.json').read_text())
    rows = [i['ids'] for ds in (learn.dls.train_ds, learn.dls.valid_ds) for i in ds.items]
    assert o['format']==1 and o['stage']=='language model' and o['parent']==family and o['seconds']==1.5 and 'labels' not in o
    assert o['tokenizer']==tok_hash(tiny_tok(family)) and o['data']==content_hash(rows)
    assert {'python','fastformers','fastai','torch','transformers','tokenizers'}<=o['versions'].keys() and all(o['versions'].values())
    if family!='bert': return
    cl = classifier_learner(classifier_dls(tiny_df(), path), path)
    cl.save_encoder(tmp_path/'cl')
    c = json.loads((tmp_path/'cl/stage.json').read_text())
    assert c['stage']=='classifier' and c['labels']==['negative','neutral','positive'] and c['parent']['data']==o['data']!=c['data'] and c['tokenizer']==o['tokenizer']

def test_other_data_have_another_hash():
    rows = [tokenizer('bert')(t) for t in texts[:3]]
    assert len({content_hash(rows), content_hash(rows[::-1]), content_hash(rows[:2]), content_hash(texts[:3])})==4
    assert tok_hash(tiny_tok('bert'))!=tok_hash(tiny_tok('roberta'))

def tree(path): return {str(o.relative_to(path)):o.read_bytes() for o in Path(path).rglob('*') if o.is_file()}

@pytest.mark.parametrize('where', ['model','tokenizer','record'])
def test_a_failed_save_leaves_the_old_directory_alone(where, tmp_path, monkeypatch):
    learn = stage('bert', tmp_path/'lm')
    old = tree(tmp_path)
    def fail(*args, **kwargs): raise RuntimeError('disk full')
    with torch.no_grad(): learn.model.hf.get_input_embeddings().weight.add_(1.)
    if where=='model':
        real = learn.model.hf.save_pretrained
        def half(path, **kwargs): real(path, **kwargs); fail()
        monkeypatch.setattr(learn.model.hf, 'save_pretrained', half)
    elif where=='tokenizer': monkeypatch.setattr(type(tiny_tok('bert')), 'save_pretrained', fail)
    else: monkeypatch.setattr(learner_module, 'write_stage', fail)
    with pytest.raises(RuntimeError, match='disk full'): learn.save_encoder(tmp_path/'lm')
    with pytest.raises(RuntimeError, match='disk full'): learn.save_encoder(tmp_path/'new')
    assert tree(tmp_path)==old and [o.name for o in tmp_path.iterdir()]==['lm']
    monkeypatch.undo()
    learn.save_encoder(tmp_path/'lm')
    assert tree(tmp_path)!=old and [o.name for o in tmp_path.iterdir()]==['lm']

def test_saving_never_replaces_what_is_no_stage(tmp_path):
    learn = stage('bert', tmp_path/'lm')
    (tmp_path/'thesis').mkdir(); (tmp_path/'thesis/text.md').write_text('years of work')
    with pytest.raises(FileExistsError, match='holds no stage.json'): learn.save_encoder(tmp_path/'thesis')
    assert tree(tmp_path/'thesis')=={'text.md':b'years of work'}

@pytest.mark.parametrize('kind,vocab_sz', [('unigram',600), ('bpe',500), ('wordpiece',400)])
def test_a_trained_tokenizer_is_the_same_when_reloaded(kind, vocab_sz, tmp_path):
    tok = train_tokenizer(texts, kind, vocab_sz, path=tmp_path/kind)
    again = AutoTokenizer.from_pretrained(tmp_path/kind)
    assert again.is_fast and tok_hash(again)==tok_hash(tok) and again.get_vocab()==tok.get_vocab() and again.special_tokens_map==tok.special_tokens_map
    assert again.model_max_length==tok.model_max_length==512
    odd = texts+['', '  two  spaces ', 'naïve café ❤ 数', '[SEP] [MASK]', 'x\0y']
    a,b = HFTokenizer(tok),HFTokenizer(again)
    for t in odd+pairs: assert again(*([t] if isinstance(t, str) else t))==tok(*([t] if isinstance(t, str) else t)) and torch.equal(a(t).ids, b(t).ids)
    assert again.decode(again(texts[3]).input_ids)==tok.decode(tok(texts[3]).input_ids)

def test_weights_of_another_vocabulary_are_refused_whoever_loads_them(tmp_path):
    stage('bert', tmp_path/'lm')
    own = tiny_tok('bert')
    state = json.loads(own.backend_tokenizer.to_str())
    words = [k for k,_ in sorted(state['model']['vocab'].items(), key=lambda o: o[1])]
    special = set(own.all_special_tokens)
    plain = [o for o in words if o not in special]
    turned = dict(zip(plain, reversed(plain)))
    state['model']['vocab'] = {turned.get(o, o):i for i,o in enumerate(words)} # as many tokens, other ids
    other = tiny_tok('bert').__class__(tokenizer_object=type(own.backend_tokenizer).from_str(json.dumps(state)), **own.special_tokens_map)
    learn = quiet(classifier_learner(classifier_dls(tiny_df().iloc[:16], other, bs=4), tiny_arch('bert')))
    old = {k:v.clone() for k,v in learn.model.state_dict().items()}
    with pytest.raises(ValueError, match='another tokenizer'): learn.load_encoder(tmp_path/'lm')
    assert all(torch.equal(v, old[k]) for k,v in learn.model.state_dict().items())
