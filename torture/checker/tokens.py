"""Tokens: of all calls that redeem a token, at most one returns OK."""


class Tokens:
    def __init__(self, run):
        self.run = run
        self.redeemed = {}

    def handlers(self):
        return {'worker': {'redeem': self.redeem}}

    def redeem(self, e):
        if e['status'] != 'OK':
            return
        first = self.redeemed.setdefault(e['token'], e)
        if first is not e:
            self.run.violation('tokens.redeemed', 'token %s was redeemed twice' % e['token'], first, e)

    def done(self):
        pass
