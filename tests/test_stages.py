"The directory of a stage is replaced as a whole, by nobody but its owner, through links, by many at once, and with the rights that the user gives"
import os, stat, subprocess, sys, threading, time, pytest
from pathlib import Path
from fastformers.data.block import tokenizer_of
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner
from fastformers.files import check_dir, new_dir, read_stage, write_stage
from test_contracts_common import *

def names(path): return sorted(str(o.relative_to(path)) for o in Path(path).rglob('*'))

def write(path, k=0, **files):
    "A stage of one file and `files`, all holding `k`"
    with new_dir(path) as tmp:
        for o in ('weights',*files): (tmp/o).write_text(str(k))
        write_stage(tmp, k=k)

@pytest.fixture(scope='module')
def learn(): return quiet(classifier_learner(classifier_dls(tiny_df().iloc[:16], tiny_tok('bert'), bs=8), tiny_arch('bert')))

# ---- links and places

@pytest.mark.parametrize('there', ['stage','empty','nothing'])
def test_a_link_stays_and_what_it_names_is_replaced(there, tmp_path):
    real,link = tmp_path/'real',tmp_path/'link'
    if there=='stage': write(real, 0, other=0)
    elif there=='empty': real.mkdir()
    link.symlink_to(real)
    for k in (1,2,3):
        write(link, k)
        assert link.is_symlink() and read_stage(real)['k']==k and sorted(o.name for o in tmp_path.iterdir())==['link','real'] and names(real)==['stage.json','weights']

def test_a_dot_in_the_path_is_the_directory(tmp_path, monkeypatch):
    (tmp_path/'a/b').mkdir(parents=True); monkeypatch.chdir(tmp_path/'a/b')
    write('../c', 1)
    assert read_stage(tmp_path/'a/c')['k']==1
    for o in ('.', tmp_path/'a/b'): # who stands in it would be left in a directory that is gone
        with pytest.raises(FileExistsError, match='is the directory you are in.*inside'): write(o, 1)
    with pytest.raises(FileExistsError, match='not the directory of a stage'): write('..', 1)
    assert names(tmp_path)==['a','a/b','a/c','a/c/stage.json','a/c/weights']

def test_a_file_in_the_way_is_said_to_be_one(tmp_path):
    (tmp_path/'f').write_text('mine')
    with pytest.raises(FileExistsError, match='is a file'): write(tmp_path/'f')
    with pytest.raises(OSError, match='cannot write to'): write(tmp_path/'f'/'stage')
    assert (tmp_path/'f').read_text()=='mine'

# ---- nothing of others is deleted

@pytest.mark.parametrize('what', ['notes.md','config.yaml','checkpoint-500/model.safetensors','.ipynb_checkpoints/a.ipynb'])
def test_what_the_stage_did_not_write_stops_its_replacement(what, tmp_path, learn):
    path = tmp_path/'a'
    learn.to_hf(path)
    (path/what).parent.mkdir(exist_ok=True); (path/what).write_text('mine')
    before = names(tmp_path)
    with pytest.raises(FileExistsError, match=f"{what.split('/')[0]}.*move"): learn.to_hf(path)
    with pytest.raises(FileExistsError): check_dir(path)
    assert names(tmp_path)==before and (path/what).read_text()=='mine'
    (path/what).unlink()
    (path/'.DS_Store').write_text('')
    learn.save_encoder(path) # an empty directory is nobody's work, nor is what a file browser leaves
    assert not {'README.md','.DS_Store'} & {*names(path)}

def test_a_stage_inside_a_stage_stays(tmp_path, learn):
    learn.to_hf(tmp_path/'a'); learn.to_hf(tmp_path/'a/classifier')
    with pytest.raises(FileExistsError, match=r'classifier/'): learn.to_hf(tmp_path/'a')
    assert from_hf(tmp_path/'a/classifier', device='cpu')('fine')
    (tmp_path/'b').mkdir(); learn.to_hf(tmp_path/'b/x'); (tmp_path/'b/x/link').symlink_to(tmp_path/'a')
    with pytest.raises(FileExistsError, match='link'): learn.to_hf(tmp_path/'b/x')

@pytest.mark.parametrize('family', 'bert roberta t5 llama deberta-v2'.split())
def test_each_kind_of_stage_replaces_each(family, tmp_path, learn):
    "README, head, tokenizer files of a family, shards and chat templates are the stage's own"
    own = quiet(classifier_learner(classifier_dls(tiny_df().iloc[:16], tiny_tok(family), bs=8), tiny_arch(family)))
    tok = tokenizer_of(own.dls).tok
    tok.chat_template = {'default':'{{ messages }}', 'other':'{{ tools }}'} # written to a sub-directory
    real = own.model.body.save_pretrained
    own.model.body.save_pretrained = lambda path: real(path, max_shard_size='20kB')
    path = tmp_path/'a'
    for o in (own.to_hf, learn.to_hf, own.save_encoder, own.to_hf, learn.save_encoder):
        o(path)
        assert (path/'README.md').is_file()==(o.__name__=='to_hf') and len(names(tmp_path))==len(names(path))+1
        if o.__self__ is own: assert any(n.startswith('model-00001-of-') for n in names(path)) and (path/'additional_chat_templates').is_dir()
        else: assert not any(n.startswith('model-0') for n in names(path))

def test_a_stage_without_a_list_of_its_files_is_replaced_unless_it_has_directories(tmp_path):
    (tmp_path/'a/sub').mkdir(parents=True); (tmp_path/'a/stage.json').write_text('{"format": 1}'); (tmp_path/'a/sub/x').write_text('')
    with pytest.raises(FileExistsError, match='sub/'): write(tmp_path/'a')
    (tmp_path/'a/sub/x').rename(tmp_path/'a/weights.bin')
    write(tmp_path/'a')
    assert names(tmp_path/'a')==['stage.json','weights']

def test_the_list_of_files_stays_out_of_the_facts(tmp_path):
    write(tmp_path/'a')
    assert 'files' not in read_stage(tmp_path/'a')

# ---- many writers, killed writers

def test_many_write_one_directory_at_once(tmp_path):
    errs,path = [],tmp_path/'a'
    def work(i):
        for k in range(40):
            try: write(path, 100*i+k)
            except Exception as e: errs.append(repr(e))
    switch = sys.getswitchinterval(); sys.setswitchinterval(1e-5)
    ts = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for o in ts: o.start()
    for o in ts: o.join()
    sys.setswitchinterval(switch)
    assert not errs and names(tmp_path)==['a','a/stage.json','a/weights'] and int((path/'weights').read_text())==read_stage(path)['k']

def killed_while(tmp_path, where):
    "Write stage 2 to `tmp_path/'a'` in a process that is killed at `where`"
    code = f"""import os
from pathlib import Path
from fastformers import files as stages
rename = Path.rename
def die(self, new):
    res = rename(self, new)
    os._exit(9) if '.old' in str(new) else None
    return res
Path.rename = die
with stages.new_dir({str(tmp_path/'a')!r}) as tmp:
    stages.write_stage(tmp, k=2)
    if {where!r}=='writing': os._exit(9)"""
    assert subprocess.run([sys.executable, '-W', 'ignore', '-c', code]).returncode==9

def test_a_stage_comes_back_after_its_writer_was_killed_between_two_renames(tmp_path):
    write(tmp_path/'a', 1)
    killed_while(tmp_path, 'renaming')
    assert not (tmp_path/'a').exists()
    with pytest.raises(RuntimeError):
        with new_dir(tmp_path/'a'): raise RuntimeError
    assert read_stage(tmp_path/'a')['k']==1
    write(tmp_path/'a', 3)
    assert read_stage(tmp_path/'a')['k']==3 and not any('.old' in o.name for o in tmp_path.iterdir())

def test_what_a_killed_writer_left_goes_after_a_day(tmp_path):
    write(tmp_path/'a', 1)
    killed_while(tmp_path, 'writing')
    left, = (o for o in tmp_path.iterdir() if o.name!='a')
    others = [tmp_path/'.a.backup', tmp_path/'.ab.tmp-00000000', tmp_path/'.a.tmp-mine']
    for o in others: o.mkdir(); os.utime(o, (0,0))
    write(tmp_path/'a', 2)
    assert left.exists() # it may still be at work
    os.utime(left, (time.time()-90_000,)*2)
    write(tmp_path/'a', 3)
    assert not left.exists() and all(o.exists() for o in others)

def test_an_interrupted_replacement_puts_the_old_one_back(tmp_path, monkeypatch):
    write(tmp_path/'a', 1)
    rename = Path.rename
    def stopped(self, new):
        if Path(new)==tmp_path/'a' and (self/'weights').read_text()=='2': raise KeyboardInterrupt
        return rename(self, new)
    monkeypatch.setattr(Path, 'rename', stopped)
    with pytest.raises(KeyboardInterrupt): write(tmp_path/'a', 2)
    assert read_stage(tmp_path/'a')['k']==1 and [o.name for o in tmp_path.iterdir()]==['a']

# ---- who may read it

def mode(o): return stat.S_IMODE(o.stat().st_mode)

@pytest.mark.skipif(os.name=='nt', reason='rights of POSIX')
@pytest.mark.parametrize('umask,folder,file', [(0o022,0o755,0o644), (0o077,0o700,0o600), (0o002,0o775,0o664)])
def test_a_stage_has_the_rights_that_the_user_gives(umask, folder, file, tmp_path, learn):
    old = os.umask(umask)
    try: learn.to_hf(tmp_path/'a')
    finally: os.umask(old)
    assert mode(tmp_path/'a')==folder and {mode(o) for o in (tmp_path/'a').iterdir()}=={file}
    assert (tmp_path/'a/model.safetensors').is_file() and (tmp_path/'a/head.safetensors').is_file()

@pytest.mark.skipif(os.name=='nt', reason='rights of POSIX')
def test_a_directory_that_was_private_stays_so(tmp_path):
    write(tmp_path/'a', 1); (tmp_path/'a').chmod(0o700)
    write(tmp_path/'a', 2)
    assert mode(tmp_path/'a')==0o700 and mode(tmp_path/'a/weights')==0o600
