"Vectors of a sentence encoder are those of sentence-transformers, whatever its directory says of pooling"
import json, numpy as np, pandas as pd, pytest, torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from fastformers.compare.entries import Entry, all_layers
from fastformers.compare.leaderboard import leaderboard
from fastformers.data.block import classifier_dls, lm_dls, tokenizer_of
from fastformers.data.rows import Rows
from fastformers.hub import resolve_arch
from fastformers.inference.names import from_names
from fastformers.inference.lm_predictor import lm_from_hf
from fastformers.inference.predictor import from_hf
from fastformers.inference.stage_json import read_stage
from fastformers.inference.onnx import to_onnx
from fastformers.label.vectors import TextVectors
from fastformers.learner import choose
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.learner.save import as_predictor
from fastformers.models.sentence import SentencePool
from fastformers.testing import tiny_arch, tiny_tok
from fastformers.text.encode import HFTokenizer
from fastformers.text.store import TokenStore
from fastformers.text.tokenizer import put_prompt
from fastformers.ulmfit.recipe import Recipe, read_recipe
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm

st = pytest.importorskip('sentence_transformers')
texts = ['a film', 'It was a good film, and I liked the acting.', 'no', 'why do they write '*9, 'a film about trains and a train about films']

@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
    "Write a random encoder with the pooling `modes`"
    from sentence_transformers.models import Dense, LayerNorm, Normalize, Pooling, Transformer
    from transformers import AutoModel
    at = tmp_path_factory.mktemp('body')
    AutoModel.from_config(tiny_arch('bert')).save_pretrained(at)
    tiny_tok('bert').save_pretrained(at)
    def write(modes, dense=False, norm=False):
        body = Transformer(str(at), max_seq_length=32)
        torch.manual_seed(0)
        for o in body.parameters():
            if o.dim()>1: torch.nn.init.normal_(o, std=.3) # so that tokens differ
        parts = [body, Pooling(body.get_embedding_dimension(), pooling_mode=modes)]
        if dense: parts.append(Dense(parts[1].get_embedding_dimension(), 8))
        if norm:
            parts.append(LayerNorm(parts[-1].get_embedding_dimension()))
            for o in parts[-1].parameters(): torch.nn.init.normal_(o)
        res = st.SentenceTransformer(modules=[*parts, Normalize()], device='cpu')
        path = tmp_path_factory.mktemp('encoder')
        res.save(str(path))
        return path, torch.tensor(res.encode(texts))
    return write

@pytest.mark.parametrize('modes', ['cls','max','mean','mean_sqrt_len_tokens','weightedmean','lasttoken',('cls','mean'),('mean','max','lasttoken')], ids=str)
def test_vectors_are_those_of_sentence_transformers(encoder, modes):
    path,want = encoder(modes)
    p = from_hf(path, 'cpu')
    for bs in (64,1): assert (p.vectors(texts, bs=bs)*want).sum(1).min()>.9999
    mean = from_hf(path, 'cpu')
    mean.model.sentence = SentencePool()
    if modes not in ('mean','mean_sqrt_len_tokens'):
        got = mean.vectors(texts)
        assert got.shape!=want.shape or (got*want).sum(1).min()<.9998, 'they differ from the mean'

def test_files_of_before_version_5(encoder):
    path,want = encoder('cls')
    (path/'1_Pooling/config.json').write_text(json.dumps(dict(word_embedding_dimension=want.shape[1], pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)))
    assert (from_hf(path, 'cpu').vectors(texts)*want).sum(1).min()>.9999

def test_names_and_stored_vectors_follow(encoder, tmp_path, monkeypatch):
    monkeypatch.setenv('FASTFORMERS_HOME', str(tmp_path))
    path,want = encoder('cls')
    assert (torch.tensor(TextVectors(path)(texts)).float()*want).sum(1).min()>.999
    other = json.loads((path/'1_Pooling/config.json').read_text())|dict(pooling_mode='mean')
    (path/'1_Pooling/config.json').write_text(json.dumps(other))
    assert (torch.tensor(TextVectors(path)(texts)).float()*want).sum(1).min()<.999, 'not those of the old pooling'

def test_dense_layers(encoder):
    path,want = encoder(('cls','mean'), dense=True)
    assert want.shape[1]==8 and (from_hf(path, 'cpu').vectors(texts)*want).sum(1).min()>.9999

@pytest.mark.parametrize('modes,dense,norm', [('mean',True,False), (('cls','lasttoken'),False,False), (('max','weightedmean'),True,True), ('cls',False,True)], ids=str)
def test_a_classifier_from_names_has_the_encoders_own_vectors(encoder, tmp_path, modes, dense, norm):
    path,vectors = encoder(modes, dense, norm)
    assert torch.allclose(from_hf(path, 'cpu').vectors(texts), vectors, atol=1e-5)
    clf,encode = from_names(['good','trains'], path),st.SentenceTransformer(str(path), device='cpu').encode
    want = (20*torch.tensor(encode(texts)@encode(['good','trains']).T)).softmax(1)
    again = from_hf(clf.save(tmp_path/'names'), 'cpu')
    for o in (clf,again): assert torch.allclose(o.scores(texts), want, atol=1e-5)
    again.add_class('films', texts[:2])
    assert torch.allclose(from_hf(again.save(tmp_path/'more'), 'cpu').scores(texts), again.scores(texts), atol=1e-6)

def test_what_does_not_fit_is_an_error(encoder):
    "Each door opens an `HFModel`, so one is enough"
    path,_ = encoder('mean', dense=True)
    def fails(file, match, **o):
        old = (path/file).read_text()
        said = json.loads(old)
        (path/file).write_text(json.dumps(said|o if isinstance(said, dict) else said+[o]))
        for door in (from_hf, from_names_of):
            with pytest.raises(ValueError, match=match): door(path)
        (path/file).write_text(old)
    def from_names_of(path): from_names(['good','bad'], path)
    fails('1_Pooling/config.json', 'names the pooling median, expected some of cls', pooling_mode='median')
    fails('1_Pooling/config.json', 'pools states of width 99', embedding_dimension=99)
    fails('modules.json', 'names the module CNN, expected Transformer', type='sentence_transformers.models.CNN', path='3_CNN')
    fails('modules.json', 'names a folder outside', type='sentence_transformers.models.Dense', path='../3_Dense')
    fails('2_Dense/config.json', 'has a residual connection', use_residual=True)
    (path/'2_Dense/model.safetensors').unlink()
    with pytest.raises(ValueError, match='has no model.safetensors, and pickled weights are not read'): from_hf(path)

@pytest.mark.parametrize('modes', ['cls','weightedmean',('mean','lasttoken')], ids=str)
def test_what_is_written_is_opened_by_both(encoder, modes, tmp_path):
    "A language model and a classifier that began with a sentence encoder have its pooling and dense layers"
    path,_ = encoder(modes, dense=True)
    df = pd.DataFrame(dict(text=texts*4, label=['a','b','a','b','a']*4))
    lm = lm_learner(lm_dls(df, path, seq_len=16, bs=4), path)
    lm.save_encoder(tmp_path/'lm')
    learn = classifier_learner(classifier_dls(df, tmp_path/'lm', bs=4, max_len=32, windows=1), tmp_path/'lm')
    learn.fit(1, 1e-3)
    learn.to_hf(tmp_path/'classifier')
    for at in ('lm','classifier'):
        ours,theirs = from_hf(tmp_path/at, 'cpu').vectors(texts), torch.tensor(st.SentenceTransformer(str(tmp_path/at), device='cpu').encode(texts))
        assert ours.shape[1]==8 and torch.cosine_similarity(ours, theirs).min()>.9999

def test_stage_2_of_an_encoder_is_opened_by_both_and_by_onnx(encoder, tmp_path):
    "Word similarity is the default of an encoder; a corpus on disk trains as one in memory"
    pytest.importorskip('onnxruntime')
    path,before = encoder('cls')
    rows = [f'{o} {i%7} {word}' for i in range(60) for o,word in zip(texts[:3], ('well','good','film'))]
    how = dict(epochs=2., lr=1e-2, bs=16, precision='fp32')
    stage = fine_tune_lm(rows, path, tmp_path/'lm', **how)
    assert read_stage(tmp_path/'lm')['recipe']['objective']=='word_similarity'
    ours,theirs = from_hf(tmp_path/'lm', 'cpu').vectors(texts),torch.tensor(st.SentenceTransformer(str(tmp_path/'lm'), device='cpu').encode(texts))
    assert torch.cosine_similarity(ours, theirs).min()>.9999 and torch.cosine_similarity(ours, before).min()<.9999
    to_onnx(tmp_path/'lm')
    assert torch.cosine_similarity(from_hf(tmp_path/'lm', 'cpu', backend='onnx').vectors(texts), ours).min()>.9999
    store = TokenStore.build(rows, path, tmp_path/'store')
    disk = fine_tune_lm(store, path, **how)
    assert all(torch.equal(a, b) for a,b in zip(stage.learner.model.parameters(), disk.learner.model.parameters()))

def test_onnx_has_the_same_vectors(encoder, tmp_path):
    pytest.importorskip('onnxruntime')
    path,want = encoder('cls', dense=True)
    learn = classifier_learner(classifier_dls(pd.DataFrame(dict(text=texts*4, label=['a','b','a','b','a']*4)), path, bs=4), path)
    learn.to_hf(tmp_path/'c')
    clf = from_names(['good','bad'], path)
    clf.save(tmp_path/'names')
    for o in ('c','names'):
        to_onnx(tmp_path/o)
        assert (from_hf(tmp_path/o, 'cpu', backend='onnx').vectors(texts)*want).sum(1).min()>.9999
    assert torch.allclose(from_hf(tmp_path/'names', 'cpu', backend='onnx').scores(texts), clf.scores(texts), atol=1e-5)

@pytest.mark.parametrize('family', ['bert','roberta','gpt2','xlnet','t5','modernbert','llama','xlm-roberta'])
def test_a_prompt_is_read_as_if_it_stood_in_the_text(family):
    tok = tiny_tok(family)
    plain,prompted = HFTokenizer(tok), HFTokenizer(tok, prompt='query: ')
    for o in ('a film','The 2nd film','about trains; why?'):
        assert prompted.encode_batch([o])[0].ids.tolist()==plain.encode_batch([f'query: {o}'])[0].ids.tolist()
        read = ''.join(o[a:b].strip() for a,b in prompted.rust.encode(o).offsets)
        assert read==o.replace(' ', ''), 'places are those in the text'
    assert prompted.prompt==HFTokenizer(prompted.tok).prompt=='query: ' and HFTokenizer(prompted.tok, prompt='none').prompt==plain.prompt==''
    short = HFTokenizer(tok, max_len=18, prompt='query: ').encode_batch(['why do they write '*9])[0]
    assert len(short)==18 and short.ids.tolist()[:4]==prompted.encode_batch(['a'])[0].ids.tolist()[:4], 'a prompt is not cut'
    with pytest.raises(ValueError, match='`max_len` 16 leaves no room'): HFTokenizer(tok, max_len=16, windows=9, overlap=7, prompt='Say what it is about in a word: ')

def says(path, **o): (path/'config_sentence_transformers.json').write_text(json.dumps(o))

def test_which_prompt_comes_before_a_text(encoder):
    path,_ = encoder('cls')
    prompts = dict(query='a train ', Classification='a film ', document='')
    says(path, prompts=prompts, default_prompt_name='query')
    p,theirs = from_hf(path, 'cpu'),st.SentenceTransformer(str(path), device='cpu')
    assert p.tok.prompt=='a train ' and (p.vectors(texts)*torch.tensor(theirs.encode(texts))).sum(1).min()>.9999
    p.tok = HFTokenizer(p.tok.tok, max_len=32, prompt='Classification')
    assert (p.vectors(texts)*torch.tensor(theirs.encode(texts, prompt_name='Classification'))).sum(1).min()>.9999
    says(path, prompts=prompts, default_prompt_name=None)
    assert HFTokenizer(path).prompt=='a film ', 'one for classification'
    says(path, prompts=dict(query='a train ', document=''), default_prompt_name=None)
    assert HFTokenizer(path).prompt==''
    with pytest.raises(ValueError, match="the prompt 'qurey' is not listed; expected none, query or a text"): HFTokenizer(path, prompt='qurey')

def test_prompts_are_not_tried_where_minutes_are_few(encoder, monkeypatch):
    path,_ = encoder('cls')
    says(path, prompts=dict(query='a train ', document='a film '), default_prompt_name=None)
    rows = Rows(pd.DataFrame(dict(text=[f'{a} {i}' for i in range(20) for a in ('good','bad')], label=['yes','no']*20))).hold_out()
    tried = []
    monkeypatch.setattr(choose, 'right_in_folds', lambda x, y, folds: tried.append(1) or np.zeros(len(y)))
    assert 'minutes are too few to try 2 prompts' in choose.choose_prompt(rows, str(path), str(path), minutes=1e-9)[1] and len(tried)==1
    assert choose.choose_prompt(rows, str(path), str(path), minutes=60)[0]=='none' and len(tried)==4

def test_a_comparison_tries_prompts_once_for_the_same_rows(encoder, monkeypatch, clock):
    path,_ = encoder('cls')
    says(path, prompts=dict(query='a train ', document='a film '), default_prompt_name=None)
    rows = pd.DataFrame(dict(text=[f'{a} {i}' for i in range(20) for a in ('good','bad')], label=['yes','no']*20))
    tried = []
    monkeypatch.setattr(choose, 'right_in_folds', lambda x, y, folds: tried.append(1) or np.full(len(y), float(len(tried)%3==2)))
    short = Entry('short', all_layers, ('arch','frozen probe'), dict(classifier=dict(epochs=.5)))
    for data,n in ((rows,2), (rows.assign(is_valid=np.arange(40)%4==0),1)): # each seed has its own rows, or all have the same
        tried.clear()
        board = leaderboard(data, archs=str(path), entries=['frozen probe',short], seeds=(1,2), minutes=99, log=lambda o: None)
        assert len(tried)==3*(n+1) and {*board.scored}=={'frozen probe','short'} # once more for all rows
        assert board.chosen['prompt']=='query' and 'a probe of' in board.chosen.settings['prompt'][1]

@pytest.mark.parametrize('modes', ['mean','cls',('mean_sqrt_len_tokens','lasttoken','max')], ids=str)
def test_a_prompt_that_is_left_out_of_the_pooling(encoder, tmp_path, modes):
    "As in sentence-transformers: by vectors, by heads, in windows and in a graph"
    path,_ = encoder(modes, dense=True)
    says(path, prompts=dict(query='a train: '), default_prompt_name='query')
    pooled = from_hf(path, 'cpu').vectors(texts)
    said = json.loads((path/'1_Pooling/config.json').read_text())
    (path/'1_Pooling/config.json').write_text(json.dumps(said|dict(include_prompt=False)))
    encode,p = st.SentenceTransformer(str(path), device='cpu').encode,from_hf(path, 'cpu')
    want,names = torch.tensor(encode(texts)),torch.tensor(encode(['good','bad']))
    for bs in (64,1): assert torch.allclose(p.vectors(texts, bs=bs), want, atol=1e-5)
    assert not torch.allclose(pooled, want, atol=1e-3)
    clf = from_names(['good','bad'], path)
    again = from_hf(clf.save(tmp_path/'names'), 'cpu')
    for o in (clf,again): assert torch.allclose(o.scores(texts), (20*want@names.T).softmax(1), atol=1e-5)
    p.tok = HFTokenizer(path, max_len=32, prompt='none')
    assert torch.allclose(p.vectors(texts), torch.tensor(encode(texts, prompt='')), atol=1e-5)
    tok = HFTokenizer(path, max_len=16, windows=9, overlap=2)
    x = tok.batch(tok.encode_batch([texts[3]]))
    starts = [0,*x.sequence_starts[0].nonzero().flatten().tolist()]
    n = len(tok.tok('a train:').input_ids)-1
    assert len(starts)>2 and x.prompt[0].nonzero().flatten().tolist()==[a+i for a in starts for i in range(n)]
    if pytest.importorskip('onnxruntime') and modes=='mean':
        to_onnx(tmp_path/'names')
        assert torch.allclose(from_hf(tmp_path/'names', 'cpu', backend='onnx').scores(texts), clf.scores(texts), atol=1e-5)

@pytest.mark.parametrize('family', ['bert','roberta','gpt2','xlnet','t5','modernbert','llama','xlm-roberta'])
def test_the_tokens_of_a_prompt_are_those_of_sentence_transformers(family, tmp_path):
    from sentence_transformers.models import Transformer
    from transformers import AutoModel
    AutoModel.from_config(tiny_arch('bert')).save_pretrained(tmp_path)
    tiny_tok(family).save_pretrained(tmp_path)
    n = Transformer(str(tmp_path))._get_prompt_length('query: ')
    assert HFTokenizer(tiny_tok(family), prompt='query: ').encode_batch(['why do they write'])[0].prompt.nonzero().flatten().tolist()==[*range(n)]

def test_a_classifier_carries_its_prompt(encoder, tmp_path):
    "Its directory has the prompt once, for this library and for sentence-transformers"
    path,_ = encoder('cls')
    says(path, prompts=dict(query='a train ', passage='a film '), default_prompt_name=None)
    df = pd.DataFrame(dict(text=[f'{t} {i}' for i in range(6) for t in texts], label=['a','b','a','b','a']*6))
    stage = fine_tune_classifier(df, path, path=tmp_path/'c', prompt='passage', epochs=0, max_len=40)
    assert stage.plan['prompt']=='passage' and tokenizer_of(stage.learner.dls).prompt=='a film '
    p,theirs = from_hf(tmp_path/'c', 'cpu'),st.SentenceTransformer(str(tmp_path/'c'), device='cpu')
    assert p.tok.prompt=='a film ' and torch.cosine_similarity(p.vectors(texts), torch.tensor(theirs.encode(texts))).min()>.9999
    assert torch.allclose(p.scores(texts), as_predictor(stage.learner).scores(texts), atol=1e-6)
    chosen = fine_tune_classifier(df, path, epochs=0)
    assert chosen.plan['prompt'] in ('none','query','passage') and all(o in chosen.plan.settings['prompt'][1] for o in ('none','query','passage'))
    with pytest.raises(ValueError, match='is not listed'): fine_tune_classifier(df, path, prompt='qurey', epochs=0)

def test_the_recipe_of_a_frozen_probe_has_its_prompt(encoder, tmp_path):
    "The one that was chosen, also when a comparison that has finished is read again"
    path,_ = encoder('cls')
    says(path, prompts=dict(query='a train ', passage='a film '), default_prompt_name=None)
    df = pd.DataFrame(dict(text=[f'{t} {i}' for i in range(8) for t in texts], label=['a','b','a','b','a']*8))
    for resume in (False,True):
        board = leaderboard(df, archs=[str(path)], entries=['frozen probe'], seeds=(1,), path=tmp_path/'board', resume=resume, log=lambda o: None)
        prompt = read_recipe(tmp_path/'board/settings.ini').classifier.prompt
        assert prompt==board.chosen['prompt'] in ('none','query','passage') and 'a probe of' in board.chosen.settings['prompt'][1]
        assert HFTokenizer(path, prompt=prompt).prompt==from_hf(tmp_path/'board/best', 'cpu').tok.prompt

@pytest.mark.parametrize('family', ['xlm-roberta','roberta','bert'])
def test_a_prompt_as_a_text_at_each_door(family, tmp_path):
    "Its space is put behind it where settings and files lose it"
    df = pd.DataFrame(dict(text=[f'{t} {i}' for i in range(6) for t in texts], label=['a','b','a','b','a']*6))
    for asked,prompt in (('query: ','query: '), ('query:','query: '), ('Say what it is.\nQuery: ','Say what it is.\nQuery: ')):
        stage = fine_tune_classifier(df, tiny_arch(family), path=tmp_path/'c', tok=tiny_tok(family), prompt=asked, epochs=.1)
        assert tokenizer_of(stage.learner.dls).prompt==from_hf(tmp_path/'c', 'cpu').tok.prompt==prompt
        (tmp_path/'settings.ini').write_text(Recipe().replace(classifier=dict(prompt=asked)).to_ini())
        again = read_recipe(tmp_path/'settings.ini').classifier.prompt
        assert HFTokenizer(tiny_tok(family), prompt=again).prompt==prompt

def test_language_models_read_texts_without_the_prompt(encoder, tmp_path):
    "A prompt would be masked and be easy to predict; the tokenizer keeps it for later stages"
    path,_ = encoder('cls')
    says(path, prompts=dict(query='a train '), default_prompt_name='query')
    learn = lm_learner(lm_dls(texts*4, path, seq_len=16, bs=4), path)
    plain = lm_dls(texts*4, HFTokenizer(path, prompt='none'), seq_len=16, bs=4)
    assert [int(o.lengths.sum()) for o in learn.dls.loaders]==[int(o.lengths.sum()) for o in plain.loaders]
    learn.save_encoder(tmp_path/'lm')
    assert HFTokenizer(tmp_path/'lm').prompt=='a train ' and lm_from_hf(tmp_path/'lm', 'cpu').tok.prompt==''

def test_a_tokenizer_that_replaces_spaces():
    "As Gemma's: spaces become marks before the text is divided"
    tok = tiny_tok('gpt2')
    rust = Tokenizer.from_str(tok.backend_tokenizer.to_str())
    rust.normalizer,rust.pre_tokenizer = normalizers.Replace(' ', '_'),pre_tokenizers.Split('_', 'merged_with_next')
    assert put_prompt(rust, 'query: ').encode('a film').ids==rust.encode('query: a film').ids
    with pytest.raises(ValueError, match="joins the prompt 'wh' with the text behind it; pass another, or prompt='none'"): put_prompt(tiny_tok('bert').backend_tokenizer, 'wh')

def test_minilm_both_ways(tmp_path):
    "A classifier that began with a real sentence encoder is one too"
    path = resolve_arch('minilm')
    def near(at):
        ours,theirs = from_hf(at, 'cpu').vectors(texts),torch.tensor(st.SentenceTransformer(str(at), device='cpu').encode(texts))
        assert torch.cosine_similarity(ours, theirs).min()>.9999
    near(path)
    learn = classifier_learner(classifier_dls(pd.DataFrame(dict(text=texts*4, label=['a','b','a','b','a']*4)), 'minilm', bs=4), 'minilm')
    learn.fit(1, 1e-4)
    near(learn.to_hf(tmp_path/'c'))
