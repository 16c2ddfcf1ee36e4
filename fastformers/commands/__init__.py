"What a command of the terminal does: each verb is a function of parsed flags"
