"Vectors of a sentence encoder are those of sentence-transformers, whatever its directory says of pooling"
import json, pytest, torch
from fastformers.inference.names import from_names
from fastformers.inference.predictor import from_hf
from fastformers.label.vectors import TextVectors
from fastformers.testing import tiny_arch, tiny_tok

st = pytest.importorskip('sentence_transformers')
texts = ['a film', 'It was a good film, and I liked the acting.', 'no', 'why do they write '*9, 'a film about trains and a train about films']

@pytest.fixture(scope='module')
def encoder(tmp_path_factory):
    "Write a random encoder with the pooling `modes`"
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
    from transformers import AutoModel
    at = tmp_path_factory.mktemp('body')
    AutoModel.from_config(tiny_arch('bert')).save_pretrained(at)
    tiny_tok('bert').save_pretrained(at)
    def write(modes, dense=False):
        body = Transformer(str(at), max_seq_length=32)
        torch.manual_seed(0)
        for o in body.parameters():
            if o.dim()>1: torch.nn.init.normal_(o, std=.3) # so that tokens differ
        parts = [body, Pooling(body.get_embedding_dimension(), pooling_mode=modes)]
        if dense: parts.append(Dense(parts[1].get_embedding_dimension(), 8))
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
    mean.pool = lambda h,mask: (h*mask[...,None]).sum(1)
    if modes not in ('mean','mean_sqrt_len_tokens') and want.shape[1]==mean.vectors(texts).shape[1]:
        assert (mean.vectors(texts)*want).sum(1).min()<.9998, 'they differ from the mean'

def test_files_of_before_version_5(encoder):
    path,want = encoder('cls')
    (path/'1_Pooling/config.json').write_text(json.dumps(dict(word_embedding_dimension=want.shape[1], pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)))
    assert (from_hf(path, 'cpu').vectors(texts)*want).sum(1).min()>.9999

def test_names_and_stored_vectors_follow(encoder, tmp_path, monkeypatch):
    monkeypatch.setenv('FASTFORMERS_HOME', str(tmp_path))
    path,want = encoder('cls')
    assert (torch.tensor(TextVectors(path)(texts)).float()*want).sum(1).min()>.999
    assert from_names(['good','bad'], path).model.head_spec()['pool']=='cls'
    other = json.loads((path/'1_Pooling/config.json').read_text())|dict(pooling_mode='mean')
    (path/'1_Pooling/config.json').write_text(json.dumps(other))
    assert (torch.tensor(TextVectors(path)(texts)).float()*want).sum(1).min()<.999, 'not those of the old pooling'

def test_what_is_not_followed_is_said(encoder, caplog):
    path,_ = encoder('mean', dense=True)
    from_hf(path, 'cpu')
    assert 'vectors are those before Dense of modules.json' in caplog.text
    said = json.loads((path/'1_Pooling/config.json').read_text())|dict(pooling_mode='median')
    (path/'1_Pooling/config.json').write_text(json.dumps(said))
    with pytest.raises(ValueError, match='names the pooling median, expected some of cls'): from_hf(path, 'cpu')
