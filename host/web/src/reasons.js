// Why a question is asked, in Chinese: the sentences of the judge, with their names and paths left as they are.
import { chinese } from "./strings.js";

const REASONS = [
  [/^(.+) deletes$/, "$1 会删除内容"],
  [/^(.+) uses the network$/, "$1 会访问网络"],
  [/^(.+) installs$/, "$1 会安装软件"],
  [/^(.+) runs as another user$/, "$1 以其他用户身份运行"],
  [/^(.+) is outside the vault, where files may not be changed$/, "$1 在工作目录之外，不能修改"],
  [/^(.+) is outside the vault$/, "$1 在工作目录之外"],
  [/^(.+) looks like a file of secrets(?:: .*)?$/, "$1 可能含有机密"],
  [/^(.+) changes what runs later(?:: .*)?$/, "$1 会在以后被自动执行"],
  [/^it cannot be read surely: (.+)$/, "无法可靠地解析：$1"],
  [/^(.+) runs, writes or reads more than it shows$/, "$1 还会执行、写入或读取命令中看不到的内容"],
  [/^(.+) runs or configures what no rule sees$/, "$1 会执行或配置规则看不到的内容"],
  [/^(.+) runs code that no rule sees$/, "$1 会执行规则看不到的代码"],
  [/^(.+) runs (.+), which no rule has seen$/, "$1 会执行 $2，其内容未经规则检查"],
  [/^(.+) runs what it reads, which is not in the command$/, "$1 会执行它读到的内容，命令中看不到"],
  [/^it runs (.+), which was written a moment before$/, "它会执行刚刚写入的 $1"],
  [/^it sets (.+), which changes how commands run$/, "它设置了 $1，会改变命令的运行方式"],
  [/^(.+) changes the state of the shell$/, "$1 会改变 shell 的状态"],
  [/^(.+) is known only when it runs$/, "$1 在运行时才能确定"],
  [/^(.+) is a pattern that matches files$/, "$1 是匹配文件的模式"],
  [/^(.+) is in a folder that is not known before it runs$/, "$1 所在的目录在运行前无法确定"],
  [/^the folder that it works in is not known before it runs$/, "运行前无法确定它所在的目录"],
  [/^(.+) is a git repository other than this folder's own.*$/, "$1 是另一个 git 仓库，其配置可能执行程序"],
  [/^(.+) is a folder$/, "$1 是一个目录"],
  [/^a repository in it can run programs$/, "其中的仓库可能执行程序"],
  [/^(.+) is not a program that is known here$/, "$1 是未知的程序"],
  [/^it is too long to check$/, "命令过长，无法检查"],
  [/^your rule asks about (.+)$/, "你的规则要求询问 $1"],
  [/^and (\d+) more$/, "另有 $1 项"],
];

const inChinese = (one) => {
  const [pattern, words] = REASONS.find(([each]) => each.test(one)) ?? [];
  return pattern ? one.replace(pattern, words) : one;
};

/** Return why a question is asked, in the language of the page; a sentence without a translation stays as it is. */
export const translated = (text) => (chinese() ? text.split("; ").map(inChinese).join("；") : text);
